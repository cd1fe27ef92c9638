package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/review"
)

// written is a session whose commits the test creates directly.
type written struct {
	*Session
	t  *testing.T
	at time.Time
}

func newWritten(t *testing.T) *written {
	t.Helper()
	repo, err := session.OpenRepo(t.TempDir(), session.RepoOptions{Format: object.SHA1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { repo.Close() })
	return &written{&Session{Name: "work", Repo: repo}, t, time.Unix(1_700_000_000, 0)}
}

// commit creates a commit that is one minute newer than the previous one.
func (w *written) commit(message string, parents ...object.ID) object.ID {
	w.t.Helper()
	w.at = w.at.Add(time.Minute)
	text := "tree " + object.EmptyTree(object.SHA1).String() + "\n"
	for _, p := range parents {
		text += "parent " + p.String() + "\n"
	}
	text += fmt.Sprintf("author Ada Lovelace <ada@x> %d +0100\ncommitter Grace <g@x> %d +0000\n\n%s\n", w.at.Unix()-10,
		w.at.Unix(), message)
	c, err := session.Outgoing(object.SHA1, object.Commit, []byte(text))
	if err == nil {
		err = w.Repo.Write(context.Background(), []odb.Outgoing{c})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return c.ID
}

// missing returns the ID of a commit that the repository does not have.
func missing(t *testing.T, name string) object.ID {
	t.Helper()
	id, err := object.Hash(object.SHA1, object.Blob, []byte(name))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestHistory checks that the history ends at commits of the mounted remote, and that each commit precedes its parents
// even if clocks were wrong.
func TestHistory(t *testing.T) {
	w := newWritten(t)
	base, other := missing(t, "base"), missing(t, "other")
	first := w.commit("fixup! later", base)
	side := w.commit("side", first, other)
	w.at = w.at.Add(-time.Hour)
	late := w.commit("\n\nwith a wrong clock", first)
	head := w.commit("merge", late, side)
	h, err := w.history(t.Context(), head)
	if err != nil {
		t.Fatal(err)
	}
	var got []object.ID
	for _, c := range h.commits {
		got = append(got, c.id)
	}
	if want := []object.ID{head, side, late, first}; !slices.Equal(got, want) {
		t.Errorf("order of commits: got %v, want %v", got, want)
	}
	if len(h.bases) != 2 || !h.has(base) || !h.has(other) || h.has(missing(t, "x")) {
		t.Errorf("bases: got %v, want %s and %s", h.bases, base, other)
	}
	if rest := h.without(h.ancestors(side)); len(rest) != 2 || rest[0].id != head || rest[1].id != late {
		t.Errorf("commits that %s lacks: got %d", side, len(rest))
	}
	shown := h.commits[2].shown()
	if shown.Subject != "with a wrong clock" || shown.Author != "Ada Lovelace" ||
		shown.Time.Unix() != h.commits[2].committed.Unix()-10 {
		t.Errorf("commit as it is shown: got %+v", shown)
	}
	if got := review.Title(texts(h.commits)); got != "with a wrong clock" {
		t.Errorf("title: got %q, want the first commit that corrects no other", got)
	}
	if got := review.Title(texts(h.commits[3:])); got != "fixup! later" {
		t.Errorf("title of a correction: got %q", got)
	}
	if len(h.trees) != 1 || h.trees[h.commits[0].tree] != head {
		t.Errorf("commits by their trees: got %v, want the newest one, %s", h.trees, head)
	}
	// A checkpoint in the history is refused.
	id := session.NewCheckpointID(w.at)
	point :=
		w.commit(fmt.Sprintf("checkpoint\n\nAfs-Checkpoint: %s\nAfs-Session: work\nAfs-Lane: main\nAfs-Segment: 1\nAfs-Reason: idle\nAfs-State: %s",
			id, head), head)
	if _, err := w.history(t.Context(), w.commit("on a checkpoint", point)); !errors.Is(err, errCheckpointCommit) {
		t.Errorf("history with a checkpoint: got %v, want errCheckpointCommit", err)
	}
}

func TestTexts(t *testing.T) {
	for record, want := range map[string]string{
		`{"type":"prompt","text":"fix\n  it"}`:                                   "fix it",
		`{"role":"user","content":"fix it"}`:                                     "fix it",
		`{"role":"user","content":[{"type":"text","text":"fix"},{"text":"it"}]}`: "fix it",
		`{"role":"user","content":{"a":1}}`:                                      "",
		`[1]`:                                                                    "",
		`{"text":"` + strings.Repeat("ä", maxLine) + `"}`:                        strings.Repeat("ä", (maxLine-3)/2) + "...",
	} {
		if got := promptText(json.RawMessage(record)); got != want {
			t.Errorf("text of the prompt %s: got %q, want %q", record, got, want)
		}
	}
}
