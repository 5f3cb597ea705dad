import pytest
from rota import Span, SpanSet


def test_a_span_holds_its_start_and_not_its_end():
    assert 10 in Span(10, 20)
    assert 20 not in Span(10, 20)


def test_an_empty_span_is_refused():
    with pytest.raises(ValueError, match="ends after it starts"):
        Span(10, 10)


def test_overlapping_spans_become_one():
    assert list(SpanSet([Span(0, 10), Span(5, 20)])) == [Span(0, 20)]


def test_a_span_inside_another_changes_nothing():
    assert list(SpanSet([Span(0, 100), Span(10, 20)])) == [Span(0, 100)]


def test_touching_spans_become_one():
    assert list(SpanSet([Span(0, 10), Span(10, 20)])) == [Span(0, 20)]


def test_the_intersection_is_what_both_hold():
    left, right = SpanSet([Span(0, 10), Span(20, 30)]), SpanSet([Span(5, 25)])
    assert list(left & right) == [Span(5, 10), Span(20, 25)]


def test_the_difference_cuts_holes():
    assert list(SpanSet([Span(0, 30)]) - SpanSet([Span(5, 10), Span(15, 20)])) == [
        Span(0, 5),
        Span(10, 15),
        Span(20, 30),
    ]


def test_minutes_count_every_moment_once():
    assert SpanSet([Span(0, 60), Span(30, 90), Span(40, 50)]).minutes == 90
