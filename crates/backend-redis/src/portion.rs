//! What one script takes of a long list.

use crate::link::{BYTES_PER_SCRIPT, JOBS_PER_SCRIPT};

/// A list in parts: at most so many items each, and about so many bytes of documents, but at least one item.
pub(crate) fn portions<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut portions, mut rest) = (Vec::new(), items);
    while !rest.is_empty() {
        let mut sum = 0;
        let fits = |item: &&T| {
            let fits = sum < BYTES_PER_SCRIPT;
            sum += bytes(item);
            fits
        };
        let count = rest.iter().take(JOBS_PER_SCRIPT).take_while(fits).count();
        let (portion, others) = rest.split_at(count);
        portions.push(portion);
        rest = others;
    }
    portions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(items: &[usize]) -> Vec<usize> {
        portions(items, |bytes| *bytes).into_iter().map(<[usize]>::len).collect()
    }

    #[test]
    fn a_list_is_divided_by_number_and_by_size() {
        assert!(lengths(&[]).is_empty());
        assert_eq!(lengths(&[0; 1001]), [250, 250, 250, 250, 1]);
        assert_eq!(lengths(&[1 << 20; 5]), [2, 2, 1]);
        assert_eq!(lengths(&[64 << 20, 1, 1]), [1, 2]);
    }
}
