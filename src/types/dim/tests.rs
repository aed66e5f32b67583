use super::Dim;

fn n() -> Dim {
    Dim::n()
}

#[test]
fn formulas_that_mean_the_same_are_equal() {
    assert_eq!((n() + 3) * 2 - 6, n() * 2);
    assert_eq!((n() * 7 + 9).floor_div(&3.into()), n() * 2 + 3 + n().floor_div(&3.into()));
    assert_eq!(n().floor_div(&2.into()).floor_div(&3.into()), n().floor_div(&6.into()));
    assert_eq!(n().modulo(&1.into()), Dim::ZERO);
    assert_eq!(n().minimum(&(n() + 1)), n());
    assert_eq!(n().maximum(&Dim::from(4)), Dim::from(4).maximum(&n()));
    assert_eq!((n() * 392).exact_div(&(n() * 8)), Some(Dim::from(49)));
    assert_eq!((n() * 3 + 1).exact_div(&Dim::from(3)), None);
}

#[test]
fn printing_reads_back() {
    let third = n().floor_div(&3.into());
    let min = (third.clone() * 2).minimum(&n());
    for d in [
        n(),
        n() * n() * 2 - 5,
        n() - third.clone() * 2,
        min.clone() * 4 + 1,
        -n(),
        min.floor_div(&n()),
        n().floor_div(&third),
        n().floor_div(&n()).floor_div(&min) + 1,
        n().floor_div(&third.floor_div(&min)),
    ] {
        assert_eq!(d.to_string().parse::<Dim>().as_ref(), Ok(&d), "{d}");
    }
}

#[test]
fn formulas_that_grow_without_end_overflow() {
    let (mut nested, mut doubled) = (n(), n());
    for i in 2..200 {
        nested = (nested + 1).floor_div(&2.into());
        doubled = doubled.floor_div(&i.into()) * (doubled + i);
    }
    for overflow in [nested, doubled, Dim::from(i64::MAX) * 2, n() * i64::MAX * 3] {
        assert!(overflow.is_overflow() && !overflow.is_nonnegative());
        let rest = [
            overflow.clone() - overflow.clone(),
            overflow.floor_div(&2.into()),
            overflow.minimum(&Dim::ZERO),
            overflow.clone() * n() + 1,
        ];
        assert!(rest.iter().all(Dim::is_overflow), "{overflow}: {rest:?}");
        assert!(overflow.to_string().parse::<Dim>().is_err());
    }
    let mut deepest = n();
    while let next = (deepest.clone() + 1).floor_div(&2.into())
        && !next.is_overflow()
    {
        deepest = next;
    }
    assert_eq!(deepest.to_string().parse(), Ok(deepest.clone()), "{deepest}");
    let least = n() * i64::MIN + i64::MIN;
    for d in [least.clone(), Dim::from(i64::MIN), -n() + i64::MIN] {
        assert_eq!(d.to_string().parse::<Dim>().as_ref(), Ok(&d), "{d}");
    }
}

#[test]
fn evaluation_agrees_with_integers() {
    let d = (n() * 5 + 3).floor_div(&4.into()).minimum(&(n() + 7)) * 2 - n().modulo(&3.into());
    for k in 0..50 {
        assert_eq!(d.eval(k), ((5 * k + 3) / 4).min(k + 7) * 2 - k % 3);
    }
    assert_eq!(Dim::from(-7).floor_div(&2.into()), Dim::from(-4));
    assert_eq!(Dim::from(7).floor_div(&(-2).into()), Dim::from(-4));
    assert!((n() * 6 - 1).floor_div(&4.into()).has_small_numbers());
    let product = (n() - 1) * (1 << 40) * ((n() + 1) * (1 << 30));
    assert!(!product.has_small_numbers() && !(n() * i64::MAX).has_small_numbers());
}
