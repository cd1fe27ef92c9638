package lifecycle_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/lifecycle"
)

// newRepo returns a repository with the session s in the state open.
func newRepo(t *testing.T) *session.Repo {
	t.Helper()
	t.Parallel()
	r, err := session.OpenRepo(filepath.Join(t.TempDir(), "s.git"), session.RepoOptions{Format: object.SHA1, Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	m := session.Meta{Session: "s", Remote: "https://git.example/r"}
	if _, err := session.CreateMeta(t.Context(), r, m, "ann"); err != nil {
		t.Fatal(err)
	}
	return r
}

func meta(t *testing.T, r *session.Repo) session.Meta {
	t.Helper()
	m, _, err := session.ReadMeta(r, "s")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestStateAndProfileChangeTogether(t *testing.T) {
	r := newRepo(t)
	title, task := "Fix the login", "see https://bob:hunter2-pass@git.example/notes"
	c := lifecycle.Change{State: session.Closed, Reason: "done", Actor: "bob",
		Profile: &profile.Change{Title: &title, Task: &task, AddTags: []string{"ui"}}}
	if err := lifecycle.Local(t.Context(), r, "s", c); err != nil {
		t.Fatal(err)
	}
	m := meta(t, r)
	if m.State != session.Closed || m.Title != title || !m.Tagged("ui") {
		t.Errorf("session after the change: got state %s and profile %+v", m.State, m.Profile)
	}
	if strings.Contains(m.Task, "hunter2") || !strings.HasPrefix(m.Task, "see https://bob:") {
		t.Errorf("task with a password: got %q, want the same without it", m.Task)
	}
	if task != "see https://bob:hunter2-pass@git.example/notes" {
		t.Errorf("the request was changed to %q", task)
	}
	last := m.Transitions[len(m.Transitions)-1]
	if last.State != session.Closed || last.Actor != "bob" || last.Reason != "done" {
		t.Errorf("last transition: got %+v, want closed by bob, because it is done", last)
	}
}

func TestProfileAloneKeepsState(t *testing.T) {
	r := newRepo(t)
	before := meta(t, r)
	owner := "carol"
	c := lifecycle.Change{Profile: &profile.Change{Owner: &owner}, Actor: "bob"}
	if err := lifecycle.Local(t.Context(), r, "s", c); err != nil {
		t.Fatal(err)
	}
	m := meta(t, r)
	if m.Owner != owner || m.State != before.State || len(m.Transitions) != len(before.Transitions) {
		t.Errorf("session after a new owner: got owner %q, state %s, %d transitions", m.Owner, m.State, len(m.Transitions))
	}
}

// TestRefusedChange checks that a change has no effect if one part of it is refused.
func TestRefusedChange(t *testing.T) {
	r := newRepo(t)
	hold, released, title := "audit", "", "new"
	must := func(c lifecycle.Change) {
		t.Helper()
		if err := lifecycle.Local(t.Context(), r, "s", c); err != nil {
			t.Fatal(err)
		}
	}
	if err := lifecycle.OnHold(r, "s"); err != nil {
		t.Errorf("hold before any: got %v, want nil", err)
	}
	must(lifecycle.Change{Profile: &profile.Change{Hold: &hold}, Actor: "bob"})
	var held *profile.OnHoldError
	if err := lifecycle.OnHold(r, "s"); !errors.As(err, &held) || held.Session != "s" || held.Hold.Reason != hold {
		t.Errorf("hold: got %v, want the hold because of an audit", err)
	}
	archive := lifecycle.Change{State: session.Archived, Profile: &profile.Change{Title: &title}, Actor: "bob"}
	if err := lifecycle.Local(t.Context(), r, "s", archive); !errors.As(err, &held) {
		t.Errorf("archive of a session on hold: got %v, want the hold", err)
	}
	if m := meta(t, r); m.State != session.Open || m.Title != "" {
		t.Errorf("session after the refusal: got state %s and title %q, want no change", m.State, m.Title)
	}
	tooMany := lifecycle.Change{State: session.Closed, Profile: &profile.Change{}, Actor: "bob"}
	for i := range 100 {
		tooMany.Profile.AddTags = append(tooMany.Profile.AddTags, fmt.Sprint("tag", i))
	}
	if err := lifecycle.Local(t.Context(), r, "s", tooMany); err == nil || meta(t, r).State != session.Open {
		t.Errorf("100 tags: got %v and state %s, want an error and an open session", err, meta(t, r).State)
	}
	archive.Profile.Hold = &released // the hold is released by the same request
	must(archive)
	if m := meta(t, r); m.State != session.Archived || m.Title != title || lifecycle.OnHold(r, "s") != nil {
		t.Errorf("session after the release: got state %s, title %q and hold %v", m.State, m.Title, lifecycle.OnHold(r, "s"))
	}
}

func TestUnknownSession(t *testing.T) {
	r := newRepo(t)
	c := lifecycle.Change{State: session.Closed}
	if err := lifecycle.Local(t.Context(), r, "other", c); !errors.Is(err, session.ErrNoMeta) {
		t.Errorf("change of an unknown session: got %v, want ErrNoMeta", err)
	}
	if err := lifecycle.OnHold(r, "other"); err != nil {
		t.Errorf("hold of an unknown session: got %v, want nil", err)
	}
}

// TestSecretsAreRemoved checks that secrets are removed from the reason of a hold and the title, as from the task.
func TestSecretsAreRemoved(t *testing.T) {
	t.Parallel()
	const secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
	text := "use " + secret
	m := session.Meta{Session: "s", State: session.Open}
	c := lifecycle.Change{Actor: "bob", Profile: &profile.Change{Title: &text, Task: &text, Hold: &text}}
	if err := c.Apply(&m, time.Unix(1_750_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{"title": m.Title, "task": m.Task, "hold": m.Hold.Reason} {
		if strings.Contains(got, secret) || !strings.HasPrefix(got, "use ") {
			t.Errorf("%s: got %q, want the text without the token", name, got)
		}
	}
}
