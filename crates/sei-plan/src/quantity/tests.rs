use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Quantity {
    Quantity::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn canonical_form_is_the_one_the_api_server_stores() {
    for (text, canonical) in [
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1e3", "1e3"),
        ("1000e0", "1e3"),
        ("1e2", "100"),
        ("1E3", "1e3"),
        ("1e+3", "1e3"),
        ("1e-1", "100e-3"),
        ("0", "0"),
        ("-0", "0"),
        ("0Ki", "0"),
        ("0e99999", "0"),
        ("-1", "-1"),
        ("-0.5", "-500m"),
        ("-2048Ki", "-2Mi"),
        ("+1", "1"),
        ("1000", "1k"),
        ("10000", "10k"),
        ("100", "100"),
        ("1234567", "1234567"),
        ("1.", "1"),
        (".5", "500m"),
        ("007", "7"),
        ("1E", "1E"),
        ("1Ei", "1Ei"),
        ("0.5Ki", "512"),
        ("512Mi", "512Mi"),
        ("1536", "1536"),
        ("0.0005Ki", "512m"),
        ("1.0001Ki", "1024102400u"),
        ("1.953125Ki", "2k"),
        ("1025", "1025"),
        ("64Gi", "64Gi"),
        ("250m", "250m"),
        ("100n", "100n"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1e-400000", "1e-9"),
        ("0.0000000011", "2n"),
        ("9223372036854775807", "9223372036854775807"),
        ("9.223372036854775807E", "9223372036854775807"),
    ] {
        assert_eq!(parse(text).canonical(), canonical, "{text}");
    }
}

#[test]
fn equality_is_of_the_value() {
    for (left, right) in [
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1e3", "1k"),
        ("1k", "1000"),
        ("1Gi", "1073741824"),
        ("1.0", "1"),
        ("-0", "0"),
        ("1Ei", "1024Pi"),
    ] {
        assert_eq!(parse(left), parse(right), "{left} {right}");
    }
    for (left, right) in [("1G", "1Gi"), ("1m", "1M"), ("1", "-1"), ("1n", "2n")] {
        assert_ne!(parse(left), parse(right), "{left} {right}");
    }
}

#[test]
fn order_is_of_the_value() {
    let sorted = ["-1Gi", "-1", "-1n", "0", "1n", "999m", "1", "1k", "1Ki", "1e6", "1Mi", "1E"];
    for pair in sorted.windows(2) {
        assert!(parse(pair[0]) < parse(pair[1]), "{pair:?}");
    }
}

#[test]
fn value_rounds_away_from_zero() {
    for (text, value) in [
        ("2Gi", 2_147_483_648),
        ("1m", 1),
        ("1", 1),
        ("1.000000001", 2),
        ("-1m", -1),
        ("-1.5", -2),
        ("0", 0),
        ("1e3", 1000),
    ] {
        assert_eq!(parse(text).value(), value, "{text}");
    }
}

#[test]
fn signs_are_recognised() {
    assert!(parse("-1m").is_negative());
    assert!(!parse("-0").is_negative());
    assert!(parse("-0").is_zero());
    assert!(!parse("0.1n").is_zero());
    assert!(!parse("1").is_negative());
}

#[test]
fn what_is_not_a_quantity_is_refused() {
    for text in [
        "",
        "abc",
        "1.2.3",
        "1Kii",
        " 1",
        "1 ",
        "1 Gi",
        "\t1",
        "1\n",
        "١",
        "１",
        "1.٢",
        ".",
        "-",
        "+",
        "--1",
        "+-1",
        "1e",
        "1e+",
        "1e-",
        "1e1.5",
        "1e3k",
        "1ki",
        "1K",
        "1i",
        "1mi",
        "1Gib",
        "Gi",
        "1,5",
        "0x10",
        "1_000",
        "NaN",
        "inf",
        "1e99999999999999999999",
        "½",
        "1µ",
        "e3",
        "1.Gi.",
    ] {
        assert!(Quantity::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn what_kubernetes_would_cap_is_refused() {
    for text in [
        "9223372036854775808",
        "-9223372036854775808",
        "9223372036854775807.0000000001",
        "8Ei",
        "10E",
        "1e19",
        "1e2147483647",
        "99999999999999999999999999999999999999999999999999",
    ] {
        let error = Quantity::parse(text).unwrap_err();
        assert!(matches!(error, QuantityError::TooLarge { .. }), "{text}: {error}");
    }
}

#[test]
fn errors_name_the_value_and_the_remedy() {
    for (text, message) in [
        ("", "a quantity is empty; write a number such as `500m` or `2Gi`"),
        ("abc", "`abc` is not a quantity; write a decimal number, such as `0.5`, `500m` or `2Gi`"),
        (
            "1Kii",
            "`1Kii` has the unknown suffix `Kii`; use one of n u m k M G T P E, \
             Ki Mi Gi Ti Pi Ei, or an exponent such as `e3`",
        ),
        ("8Ei", "`8Ei` is too large; a quantity is at most 2^63-1 (about 9.2E or 7.9Ei)"),
    ] {
        assert_eq!(Quantity::parse(text).unwrap_err().to_string(), message);
    }
    let long = Quantity::parse(&"é".repeat(5000)).unwrap_err().to_string();
    assert!(long.chars().count() < 200, "{long}");
}

#[test]
fn any_number_of_digits_is_exact() {
    let barely_more = format!("0.1{}1", "0".repeat(5000));
    assert_eq!(parse(&barely_more).canonical(), "100000001n");
    let exactly = format!("{}0.1{}", "0".repeat(5000), "0".repeat(5000));
    assert_eq!(parse(&exactly).canonical(), "100m");
    // 2^60 * 10^-27 is 1.15n: only exact arithmetic finds the rest.
    assert_eq!(parse(&format!("0.{}1Ei", "0".repeat(26))).canonical(), "2n");
}

fn quantity_text() -> impl Strategy<Value = String> {
    let suffix = prop_oneof![
        prop::sample::select(vec![
            "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
        ])
        .prop_map(str::to_owned),
        (-30..30).prop_map(|exponent| format!("e{exponent}")),
    ];
    ("[-+]?", "[0-9]{1,20}", "(\\.[0-9]{0,15})?", suffix)
        .prop_map(|(sign, whole, fraction, suffix)| format!("{sign}{whole}{fraction}{suffix}"))
}

proptest! {
    #[test]
    fn canonical_keeps_the_value_and_is_a_fixed_point(text in quantity_text()) {
        match Quantity::parse(&text) {
            Ok(quantity) => {
                let canonical = quantity.canonical();
                let again = Quantity::parse(&canonical).unwrap();
                prop_assert_eq!(again, quantity);
                prop_assert_eq!(again.canonical(), canonical);
            }
            Err(error) => {
                prop_assert!(matches!(error, QuantityError::TooLarge { .. }), "{}", error);
            }
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused_without_a_panic(text in any::<String>()) {
        let _ = Quantity::parse(&text);
    }

    #[test]
    fn any_text_of_the_alphabet_is_parsed_or_refused_without_a_panic(text in "[-+0-9.eEinumkKMGTP]{0,12}") {
        if let Ok(quantity) = Quantity::parse(&text) {
            prop_assert_eq!(Quantity::parse(&quantity.to_string()).unwrap(), quantity);
            let _ = quantity.value();
        }
    }

    #[test]
    fn small_numbers_agree_with_integers(thousandths in -1_000_000_000_i64..1_000_000_000) {
        let quantity = Quantity::parse(&format!("{thousandths}m")).unwrap();
        prop_assert_eq!(quantity.is_negative(), thousandths < 0);
        let expected = i128::from(thousandths).div_euclid(1000)
            + i128::from(thousandths > 0 && thousandths % 1000 != 0);
        prop_assert_eq!(quantity.value(), expected);
    }
}
