-- Gives finished jobs whose ids live ones have other ids.
SELECT {schema}.make_room()
