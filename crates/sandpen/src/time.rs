//! Spans of time as people write and read them.

use std::time::{Duration, SystemTime};

use sandbox::{Error, Result};

/// `30s`, `1.5m`, `1h30m`, `250ms`; a bare number is seconds.
pub fn parse(text: &str) -> Result<Duration> {
    let wrong = || {
        Error::invalid_input(format!("{text:?} is not a span of time")).with_hint("write for example 30s, 5m or 1h30m")
    };
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(rest.len());
        let unit_end = rest[digits..]
            .find(|character: char| !character.is_ascii_alphabetic())
            .map_or(rest.len(), |length| digits + length);
        let seconds_per_unit = match &rest[digits..unit_end] {
            "" if digits == text.trim().len() => 1.0,
            "ms" => 0.001,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(wrong()),
        };
        let count: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(count * seconds_per_unit).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = &rest[unit_end..];
    }
    Ok(total)
}

/// The two largest units, so that a column of ages stays narrow: `850ms`, `12s`, `4m 10s`, `3h`, `2d 5h`.
pub fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| {
        if small == 0 { format!("{large}{large_unit}") } else { format!("{large}{large_unit} {small}{small_unit}") }
    };
    match seconds {
        0 if duration.is_zero() => "0s".to_owned(),
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

/// For a sentence: `30 s`, `1.5 s`, `10 min`, `2 h`.
pub fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let number = |value: f64| {
        let rounded = (value * 10.0).round() / 10.0;
        if rounded.fract() == 0.0 { format!("{rounded:.0}") } else { format!("{rounded:.1}") }
    };
    if seconds < 1.0 {
        format!("{} ms", duration.as_millis())
    } else if seconds < 120.0 {
        format!("{} s", number(seconds))
    } else if seconds < 7200.0 {
        format!("{} min", number(seconds / 60.0))
    } else if seconds <= 86400.0 || seconds % 86400.0 != 0.0 {
        format!("{} h", number(seconds / 3600.0))
    } else {
        format!("{} days", number(seconds / 86400.0))
    }
}

/// A moment for programs, in UTC to the second.
pub fn rfc3339(moment: SystemTime) -> String {
    let seconds = seconds(moment);
    let (year, month, day) = civil(seconds / 86400);
    let (hour, minute, second) = (seconds % 86400 / 3600, seconds % 3600 / 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A moment as headers have it: `Tue, 17 Nov 2026 15:59:59 GMT`.
pub fn http_date(moment: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = seconds(moment);
    let (year, month, day) = civil(seconds / 86400);
    let (hour, minute, second) = (seconds % 86400 / 3600, seconds % 3600 / 60, seconds % 60);
    let weekday = DAYS[(seconds / 86400 % 7) as usize];
    let month = MONTHS[(month - 1) as usize];
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Whole seconds since 1970; none before it.
pub fn seconds(moment: SystemTime) -> u64 {
    moment.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// So many seconds after 1970.
pub fn moment(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Days since 1970 to a date, by counting years from a first of March, so that the leap day comes last.
pub fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_write_them() {
        for (text, milliseconds) in
            [("30s", 30_000), ("5", 5000), ("0.5", 500), ("250ms", 250), ("1h30m", 5_400_000), ("1.5m", 90_000)]
        {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(milliseconds), "{text}");
        }
        for text in ["", "s", "-1s", "1x", "1h30", "1 h", "1..2s", "1e999s", "99999999999999999999d"] {
            assert!(parse(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn ages_stay_short() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (250, "4m 10s"), (10_800, "3h"), (190_000, "2d 4h")]
        {
            assert_eq!(short(Duration::from_secs(seconds)), text);
        }
        assert_eq!(short(Duration::from_millis(850)), "850ms");
    }

    #[test]
    fn moments_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_794_787_199, "2026-11-15T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn headers_name_the_day_of_the_week() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (1_794_787_199, "Sun, 15 Nov 2026 23:59:59 GMT"),
        ] {
            assert_eq!(http_date(moment(seconds)), text);
        }
    }

    #[test]
    fn sentences_name_round_numbers() {
        for (milliseconds, text) in
            [(250, "250 ms"), (1500, "1.5 s"), (30_000, "30 s"), (600_000, "10 min"), (7_200_000, "2 h")]
        {
            assert_eq!(spoken(Duration::from_millis(milliseconds)), text);
        }
        for (hours, text) in [(24, "24 h"), (25, "25 h"), (720, "30 days")] {
            assert_eq!(spoken(Duration::from_secs(hours * 3600)), text);
        }
    }
}
