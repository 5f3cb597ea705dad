import pytest
from rota import NotationError, Roster, format_spans, parse_spans

WEEK = """
ada:   mon 09:00-17:00; tue 09:00-17:00   # days
grace: mon 17:00-24:00; sun 22:00-06:00   # nights, over the end of the week
"""


def test_who_is_on_duty():
    roster = Roster.parse(WEEK)
    assert roster.on_duty("mon 16:59") == ["ada"]
    assert roster.on_duty("mon 17:00") == ["grace"]


def test_a_night_that_ends_next_week_covers_monday_morning():
    assert Roster.parse(WEEK).on_duty("mon 05:59") == ["grace"]
    assert Roster.parse(WEEK).on_duty("mon 06:00") == []


def test_hours_are_counted_across_the_end_of_the_week():
    assert Roster.parse(WEEK).hours("grace") == 15


def test_gaps_and_duties_make_a_week():
    roster = Roster.parse(WEEK)
    assert roster.gaps().minutes / 60 + roster.hours("ada") + roster.hours("grace") == 7 * 24


def test_clashes_name_the_moments():
    roster = Roster.parse("ada: fri 08:00-12:00\ngrace: fri 11:00-15:00")
    assert format_spans(roster.clashes("ada", "grace")) == "fri 11:00-12:00"


@pytest.mark.parametrize("text", ["mon 25:00-26:00", "noday 09:00-10:00", "mon 09:00", "mon 09:60-10:00"])
def test_what_is_not_in_the_notation_is_refused(text):
    with pytest.raises(NotationError):
        parse_spans(text)


def test_the_text_form_survives_a_round_trip():
    text = "mon 09:00-12:30, 13:00-17:00; fri 22:00-06:00"
    assert format_spans(parse_spans(text)) == text
