//! `strftime`, as far as chat templates go, in UTC.

use std::fmt::Write;

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAY_SECONDS: i64 = 86_400;
/// The year 9999 ends here; later times are written as this one.
const UNIX_SECONDS_MAX: i64 = 253_402_300_799;

/// The time in the given format. A directive that is not known here stays as it is written. glibc's `-` behind the
/// percent sign takes the padding away, which templates use for days and months.
pub(super) fn strftime(format: &str, unix_seconds: i64) -> String {
    let seconds = unix_seconds.clamp(0, UNIX_SECONDS_MAX);
    let (days, second_of_day) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let weekday = DAYS[(days % 7) as usize];
    let month_name = MONTHS[(month - 1) as usize];
    let mut text = String::new();
    let mut rest = format.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let is_bare = rest.next_if_eq(&'-').is_some();
        let directive = rest.next();
        // Only numbers have a width.
        let [two, three] = if is_bare { [1, 1] } else { [2, 3] };
        // Writing to a String does not fail.
        let _ = match directive {
            Some('Y') => write!(text, "{year}"),
            Some('y') => write!(text, "{:0two$}", year % 100),
            Some('m') => write!(text, "{month:0two$}"),
            Some('B') => write!(text, "{month_name}"),
            Some('b' | 'h') => write!(text, "{}", &month_name[..3]),
            Some('d') => write!(text, "{day:0two$}"),
            Some('e') => write!(text, "{day:two$}"),
            Some('j') => write!(text, "{:0three$}", days - days_before(year, 1, 1) + 1),
            Some('A') => write!(text, "{weekday}"),
            Some('a') => write!(text, "{}", &weekday[..3]),
            Some('H') => write!(text, "{hour:0two$}"),
            Some('I') => write!(text, "{:0two$}", (hour + 11) % 12 + 1),
            Some('p') => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('M') => write!(text, "{minute:0two$}"),
            Some('S') => write!(text, "{second:0two$}"),
            Some('F') => write!(text, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(text, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => write!(text, "UTC"),
            Some('z') => write!(text, "+0000"),
            Some('%') => write!(text, "%"),
            Some(other) => write!(text, "%{}{other}", if is_bare { "-" } else { "" }),
            None => write!(text, "%{}", if is_bare { "-" } else { "" }),
        };
    }
    text
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that the leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

/// Year, month and day of a day since 1970.
fn civil(days: i64) -> (i64, i64, i64) {
    // 400 years have 146 097 days; the estimate is at most a year too late.
    let mut year = 1970 + days * 400 / 146_097;
    if days_before(year, 1, 1) > days {
        year -= 1;
    } else if days_before(year + 1, 1, 1) <= days {
        year += 1;
    }
    let month = (2..=12).take_while(|&month| days_before(year, month, 1) <= days).last().unwrap_or(1);
    (year, month, days - days_before(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // Every day of 500 years, against counting.
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..182_622 {
            assert_eq!(civil(days), (year, month, day), "day {days}");
            assert_eq!(days_before(year, month, day), days);
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + i64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }

    #[test]
    fn formats_are_those_of_strftime() {
        // From `date -u -d @SECONDS`.
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %a", "1970-01-01 00:00:00 Thu"),
            (1_722_470_400, "%d %b %Y", "01 Aug 2024"),
            (
                1_709_210_096,
                "%A, %B %e, %y, day %j, %I:%M %p",
                "Thursday, February 29, 24, day 060, 12:34 PM",
            ),
            (1_709_251_199, "%F %T %Z%z%%%q%", "2024-02-29 23:59:59 UTC+0000%%q%"),
            (1_709_510_829, "%-d %-m %-y %-H %-I %-M %-S %-j %-e", "4 3 24 0 12 7 9 64 4"),
            (1_709_510_829, "%-B %-d, %-Y %-F %-q %-% %-", "March 4, 2024 2024-03-04 %-q % %-"),
            (i64::MAX, "%F", "9999-12-31"),
            (-5, "%F", "1970-01-01"),
        ];
        for (seconds, format, expected) in cases {
            assert_eq!(strftime(format, seconds), expected);
        }
    }
}
