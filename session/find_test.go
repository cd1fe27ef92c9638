package session

import (
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	zone := time.FixedZone("test", 2*3600)
	now := time.Date(2025, 3, 1, 14, 4, 30, 0, zone)
	for text, want := range map[string]string{
		"10m":                       "2025-03-01T13:54:30+02:00",
		"2h30m":                     "2025-03-01T11:34:30+02:00",
		"90s":                       "2025-03-01T14:03:00+02:00",
		"1w2d":                      "2025-02-20T14:04:30+02:00",
		"14:04":                     "2025-03-01T14:04:00+02:00",
		"14:05":                     "2025-02-28T14:05:00+02:00",
		"14:04:31":                  "2025-02-28T14:04:31+02:00",
		"2025-02-28":                "2025-02-28T23:59:59+02:00",
		"2025-02-28 09:10":          "2025-02-28T09:10:00+02:00",
		"2025-02-28 09:10:11":       "2025-02-28T09:10:11+02:00",
		"2025-02-28T09:10":          "2025-02-28T09:10:00+02:00",
		"2025-02-28T09:10:11Z":      "2025-02-28T09:10:11Z",
		"2025-02-28T09:10:11-05:00": "2025-02-28T09:10:11-05:00",
	} {
		at, ok := ParseTime(text, now)
		if got := at.Format(time.RFC3339); !ok || got != want {
			t.Errorf("ParseTime(%q): got %s, %v, want %s", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "10", "m", "01m", "0m", "01M80Q", "-5m", "10m5", "24:00", "9999999999m", "999999w",
		"2025-13-01", "HEAD", "before"} {
		if at, ok := ParseTime(text, now); ok {
			t.Errorf("ParseTime(%q): got %s, want no time", text, at)
		}
	}
}

func TestPinsAreNotNamedAsTimes(t *testing.T) {
	for _, name := range []string{"10m", "2h30m", "2025-02-28", "HEAD", "head", "a b", ""} {
		if err := ValidPin(name); err == nil {
			t.Errorf("ValidPin(%q): got nil, want an error", name)
		}
	}
	for _, name := range []string{"before-rename", "10", "m10", "01m", "10m-ago"} {
		if err := ValidPin(name); err != nil {
			t.Errorf("ValidPin(%q): got %v, want nil", name, err)
		}
	}
}
