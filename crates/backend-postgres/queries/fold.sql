-- Sums up what was counted, if it is time.
SELECT {schema}.fold_counts()
