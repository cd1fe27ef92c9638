package backoff

import (
	"context"
	"net/http"
	"testing"
	"time"
)

func TestPausesDouble(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Longest: time.Second}
	for failures, want := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 4: 800 * time.Millisecond,
		5: time.Second, 1 << 30: time.Second,
	} {
		if got := b.Limit(failures); got != want {
			t.Errorf("limit after %d failures: got %v, want %v", failures, got, want)
		}
		shortest, longest := want, time.Duration(0)
		for range 1000 {
			d := b.Pause(failures)
			shortest, longest = min(shortest, d), max(longest, d)
		}
		if shortest < want/2 || shortest > want*6/10 || longest > want || longest < want*9/10 {
			t.Errorf("pauses after %d failures: got %v to %v, want %v to %v", failures, shortest, longest, want/2, want)
		}
	}
	if d := (Backoff{}).Pause(3); d != 0 {
		t.Errorf("pause without durations: got %v, want 0", d)
	}
}

func TestWaitEndsWithContext(t *testing.T) {
	b := Backoff{First: 10 * time.Millisecond, Longest: time.Minute}
	start := time.Now()
	if !b.Wait(t.Context(), 1) || time.Since(start) < 5*time.Millisecond {
		t.Errorf("wait ended after %v, want at least 5ms", time.Since(start))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if b.Wait(ctx, 20) {
		t.Error("wait returned true after the end of its context")
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, " 7 ": 7 * time.Second, "-7": 0, "1.5": 0, "soon": 0, "99999": time.Hour,
		"99999999999": 0,
		now.Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second,
		now.Add(-time.Minute).Format(http.TimeFormat):     0,
		now.Add(48 * time.Hour).Format(http.TimeFormat):   time.Hour,
	} {
		if got := RetryAfter(value, now, time.Hour); got != want {
			t.Errorf("Retry-After %q: got %v, want %v", value, got, want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("5")
	f.Add(" -1")
	f.Add("99999999999999999999")
	f.Fuzz(func(t *testing.T, text string) {
		if d := RetryAfter(text, time.Now(), time.Hour); d < 0 || d > time.Hour {
			t.Errorf("%q waits %v", text, d)
		}
	})
}
