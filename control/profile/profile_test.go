package profile

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

func TestApply(t *testing.T) {
	var p Profile
	c := Change{Title: ptr("Fix login"), Task: ptr("two\nlines"), Owner: ptr("alice"), AddTags: []string{"b", "a", "b"},
		TTL:  ptr(48 * time.Hour),
		Hold: ptr("audit")}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(c, "alice", at); err != nil {
		t.Fatal(err)
	}
	want := Profile{Title: "Fix login", Task: "two\nlines", Owner: "alice", Tags: []string{"a", "b"},
		Expires: at.Add(48 * time.Hour),
		Hold:    &Hold{Reason: "audit", By: "alice", Since: at}, Edited: at}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("profile: got %+v, want %+v", p, want)
	}
	if p.Expired(at.Add(47*time.Hour)) || !p.Expired(at.Add(48*time.Hour)) || !p.Tagged("a", "b") || p.Tagged("a", "c") {
		t.Errorf("profile %+v expires at the wrong time or has the wrong tags", p)
	}
	var held *OnHoldError
	if err := p.OnHold("work"); !errors.As(err, &held) ||
		err.Error() != "session work is on hold since 2026-03-01 by alice: audit" {
		t.Errorf("hold: got %v", err)
	}
	before := p
	later := at.Add(time.Hour)
	if err := p.Apply(Change{Title: ptr(""), DelTags: []string{"a", "x"}, TTL: ptr(time.Duration(0)), Hold: ptr("")},
		"bob", later); err != nil {
		t.Fatal(err)
	}
	if p.Held() || p.OnHold("work") != nil || p.Hold.ReleasedBy != "bob" || p.Title != "" || !p.Tagged("b") ||
		p.Tagged("a") || !p.Expires.IsZero() {
		t.Errorf("profile after the second change: got %+v", p)
	}
	if !before.Held() {
		t.Error("the release has changed the version before")
	}
	same := p
	if err := p.Apply(Change{DelTags: []string{"a"}, Hold: ptr("")}, "bob", later.Add(time.Hour)); err != nil ||
		!reflect.DeepEqual(p, same) {
		t.Errorf("change of nothing: got %+v, %v, want %+v", p, err, same)
	}
}

func TestChangesThatAreNotValid(t *testing.T) {
	for name, c := range map[string]Change{
		"lines": {Title: ptr("a\nb")}, "escape": {Owner: ptr("\x1b[31m")}, "direction": {Hold: ptr("a\u202eb")},
		"long title": {Title: ptr(strings.Repeat("x", 201))},
		"bytes":      {Task: ptr("\xff")}, "long task": {Task: ptr(strings.Repeat("x", maxTask+1))},
		"negative":  {TTL: ptr(-time.Second)},
		"empty tag": {AddTags: []string{""}}, "dash": {AddTags: []string{"-x"}}, "space": {DelTags: []string{"a b"}},
		"comma": {AddTags: []string{"a,b"}},
	} {
		if c.Validate() == nil {
			t.Errorf("%s: change is valid", name)
		}
	}
	var p Profile
	var tags []string
	for i := range maxTags + 1 {
		tags = append(tags, "t"+string(rune('A'+i)))
	}
	for _, tag := range tags[:maxTags] {
		if ValidTag("tag") != nil {
			t.Errorf("tag %q is not valid", tag)
		}
	}
	if p.Apply(Change{AddTags: []string{"a"}}, "", at) != nil || p.Apply(Change{AddTags: tags}, "", at) == nil {
		t.Errorf("number of tags: got %d", len(p.Tags))
	}
}

// Two hosts have changed a profile: neither an edit nor a hold is lost, and a release is not undone by an older
// version.
func TestMerge(t *testing.T) {
	base := Profile{Title: "a", Edited: at}
	edited, held := base, base
	_ = edited.Apply(Change{Title: ptr("b")}, "x", at.Add(2*time.Hour))
	_ = held.Apply(Change{Hold: ptr("audit")}, "y", at.Add(time.Hour))
	for _, m := range []Profile{Merge(edited, held), Merge(held, edited)} {
		if m.Title != "b" || !m.Held() {
			t.Errorf("edit and hold: got %+v", m)
		}
	}
	released := held
	_ = released.Apply(Change{Hold: ptr("")}, "z", at.Add(3*time.Hour))
	if Merge(released, held).Held() || Merge(held, released).Held() {
		t.Error("an older version has placed the hold again")
	}
	if !Merge(base, held).Held() || !Merge(held, base).Held() {
		t.Error("a version without the hold has released it")
	}
}

func TestEmptyProfileHasNoFields(t *testing.T) {
	if text, err := json.Marshal(Profile{}); string(text) != "{}" {
		t.Errorf("empty profile: got %s, %v", text, err)
	}
}
