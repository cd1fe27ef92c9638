package retention

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/session"
)

func TestParse(t *testing.T) {
	text :=
		`{"version":1,"expired":"archive","trash_after":"14d","rules":[{"repo":"app-*","tags":["a"],"states":["closed"],"close_after":"36h"}]}`
	r, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(r)
	if err != nil ||
		string(out) != `{"version":1,"rules":[{"repo":"app-*","tags":["a"],"states":["closed"],"close_after":"36h0m0s"}],"expired":"archive","trash_after":"14d"}` {
		t.Errorf("rules: got %s, %v", out, err)
	}
	for _, bad := range []string{``, `[]`, `{"version":2}`, `{"version":1} x`, `{"version":1,"rules":[{}]}`,
		`{"version":1,"expired":"burn"}`,
		`{"version":1,"rules":[{"close_after":"-1d"}]}`, `{"version":1,"rules":[{"close_after":"x"}]}`,
		`{"version":1,"rules":[{"close_after":"1d","on":1}]}`,
		`{"version":1,"rules":[{"close_after":"1d","states":["active"]}]}`,
		`{"version":1,"rules":[{"close_after":"1d","repo":"["}]}`,
		`{"version":1,"rules":[{"close_after":"1d","tags":["a b"]}]}`, `{"version":1,"trash_after":"99999999999d"}`,
		`{"version":1,"rules":[` + strings.Repeat(`{"close_after":"1d"},`, maxRules) + `{"close_after":"1d"}]}`} {
		if _, err := Parse([]byte(bad)); !errors.Is(err, ErrRules) {
			t.Errorf("parse %.60s: got %v", bad, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"version":1,"rules":[{"states":["closed"],"archive_after":"7d"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse([]byte(text))
		if err != nil {
			return
		}
		out, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(out); err != nil {
			t.Errorf("rules that were written again: %v", err)
		}
	})
}

func TestSteps(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	ago := func(days int) time.Time { return now.Add(-time.Duration(days) * day) }
	rules := `{"version":1,"rules":[{"tags":["draft"],"delete_after":"5d"},
		{"close_after":"10d","archive_after":"20d","delete_after":"100d","transcripts_after":"30d"}]}`
	held := profile.Profile{Hold: &profile.Hold{Reason: "audit", Since: now}}
	for what, c := range map[string]struct {
		rules string
		f     facts
		want  string // action, days until it is due, and reason; also of the second step, if any
	}{
		"young":      {rules, facts{state: session.Paused, changed: ago(1)}, "close 9 rule 2: close_after 10d"},
		"old enough": {rules, facts{state: session.Open, changed: ago(10)}, "close 0 rule 2: close_after 10d"},
		"closed":     {rules, facts{state: session.Closed, changed: ago(11)}, "archive 9 rule 2: archive_after 20d"},
		"strongest": {rules, facts{state: session.Paused, changed: ago(200)},
			"delete -100 rule 2: delete_after 100d"},
		"second strongest": {rules, facts{state: session.Paused, changed: ago(50)},
			"archive -30 rule 2: archive_after 20d"},
		"in the archive": {rules, facts{state: session.Archived, bundled: true, changed: ago(50)},
			"delete 50 rule 2: delete_after 100d"},
		"archived by a user": {rules, facts{state: session.Archived, changed: ago(50)},
			"archive -30 rule 2: archive_after 20d"},
		"first rule": {rules, facts{state: session.Paused, changed: ago(6),
			Profile: profile.Profile{Tags: []string{"draft"}}}, "delete -1 rule 1: delete_after 5d"},
		"on hold": {rules, facts{state: session.Closed, changed: ago(900), records: ago(900), Profile: held},
			"none on hold: audit"},
		"active": {rules, facts{state: session.Active, changed: ago(900)}, "none active"},
		"protected": {rules, facts{state: session.Archived, bundled: true, protected: true, changed: ago(900)},
			"none the policy of the repository protects the session from deletion"},
		"protected, open": {rules, facts{state: session.Open, protected: true, changed: ago(900)},
			"archive -880 rule 2: archive_after 20d"},
		"records": {rules, facts{state: session.Paused, changed: ago(1), records: ago(40)},
			"close 9 rule 2: close_after 10d; erase -9 rule 2: transcripts_after 30d"},
		"records of a deleted one": {rules, facts{state: session.Paused, changed: ago(200), records: ago(200)},
			"delete -100 rule 2: delete_after 100d"},
		"no rule": {`{"version":1}`, facts{state: session.Paused, changed: ago(900)}, "none no rule"},
		"expired": {`{"version":1}`,
			facts{state: session.Paused, changed: ago(1), Profile: profile.Profile{Expires: ago(0)}},
			"close 0 the lifetime of the session ends"},
		"expired, archive": {`{"version":1,"expired":"archive"}`,
			facts{state: session.Closed, changed: ago(1), Profile: profile.Profile{Expires: ago(-3)}},
			"archive 3 the lifetime of the session ends"},
		"expired before its age": {rules, facts{state: session.Paused, changed: ago(1),
			Profile: profile.Profile{Expires: ago(-2)}}, "close 2 the lifetime of the session ends"},
		"other states": {`{"version":1,"rules":[{"states":["closed"],"delete_after":"1d"}]}`,
			facts{state: session.Paused, changed: ago(9)}, "none no rule"},
	} {
		r, err := Parse([]byte(c.rules))
		if err != nil {
			t.Fatal(err)
		}
		c.f.name, c.f.repo = "work", "app"
		var got []string
		for _, s := range r.steps(c.f, now) {
			text := string(s.Action) + " "
			if s.Action != None {
				text += days(s.Due.Sub(now)) + " "
			}
			got = append(got, text+s.Why)
			if s.Action == Erase && (!s.before.Equal(ago(30).Truncate(day)) || s.before.After(now)) {
				t.Errorf("%s: erases before %s", what, s.before)
			}
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s: got %q, want %q", what, strings.Join(got, "; "), c.want)
		}
	}
}

// days returns a duration as a number of days.
func days(d time.Duration) string {
	text, _ := json.Marshal(int(d / day))
	return string(text)
}
