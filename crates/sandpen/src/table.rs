//! Aligned columns.

use anstyle::Style;

use crate::output::BOLD;

#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), style: Style::new() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// A heading per column, then rows; the last column is never padded.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub fn push<const N: usize>(&mut self, row: [Cell; N]) {
        assert_eq!(N, self.columns.len(), "a row has as many cells as the table has columns");
        self.rows.push(row.into());
    }

    pub fn render(&self) -> String {
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(index, (heading, _))| {
                let cells = self.rows.iter().map(|row| row[index].text.chars().count());
                cells.chain([heading.chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        if self.columns.iter().any(|(heading, _)| !heading.is_empty()) {
            let headings: Vec<Cell> = self.columns.iter().map(|(heading, _)| Cell::styled(*heading, BOLD)).collect();
            self.line(&mut text, &headings, &widths);
        }
        self.rows.iter().for_each(|row| self.line(&mut text, row, &widths));
        text
    }

    fn line(&self, text: &mut String, row: &[Cell], widths: &[usize]) {
        let mut line = String::new();
        for (index, cell) in row.iter().enumerate() {
            let padding = " ".repeat(widths[index] - cell.text.chars().count());
            let styled = format!("{}{}{:#}", cell.style, cell.text, cell.style);
            let last = index + 1 == row.len();
            match self.columns[index].1 {
                Align::Left if last => line += &styled,
                Align::Left => line += &format!("{styled}{padding}  "),
                Align::Right => line += &format!("{padding}{styled}{}", if last { "" } else { "  " }),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_styles_take_no_room() {
        let mut table = Table::new(&[("NAME", Align::Left), ("SIZE", Align::Right), ("NOTE", Align::Left)]);
        table.push(["a".into(), "1".into(), "first".into()]);
        table.push([Cell::styled("longer", crate::output::GOOD), "1024".into(), "".into()]);
        let plain = anstream::adapter::strip_str(&table.render()).to_string();
        assert_eq!(plain, "NAME    SIZE  NOTE\na          1  first\nlonger  1024\n");
    }
}
