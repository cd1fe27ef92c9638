package transcript

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a",
		"GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s failed: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func newRepo(t *testing.T, f object.Format) *session.Repo {
	t.Helper()
	r, err := session.OpenRepo(filepath.Join(t.TempDir(), "session.git"), session.RepoOptions{Format: f, Session: "work"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestRecordsAreThereForGit(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		r := newRepo(t, f)
		at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
		p := session.NewCheckpointID(at)
		batch := Batch{Session: "work", Lane: "main", Checkpoint: p, Actor: "robot", Time: at,
			Lines: []string{`{"role": "user"}`, `{"password":"hunter2"}`}}
		done, err := Record(t.Context(), r, batch)
		if err != nil || done != (Recorded{Ref: "refs/afs/transcript/work", Lines: 2, Redacted: 1}) {
			t.Fatalf("record two lines: got %+v, %v, want 2 lines and 1 redacted", done, err)
		}
		batch.Lines = []string{`{"n":3}`}
		if _, err := Record(t.Context(), r, batch); err != nil {
			t.Fatal(err)
		}
		other := batch
		other.Checkpoint, other.Time = "", at.Add(24*time.Hour)
		if _, err := Record(t.Context(), r, other); err != nil {
			t.Fatal(err)
		}
		want := `{"time":"2026-11-22T03:04:05Z","point":"` + string(p) +
			`","session":"work","lane":"main","actor":"robot","record":{"role":"user"}}
{"time":"2026-11-22T03:04:05Z","point":"` + string(p) + `","session":"work","lane":"main","actor":"robot","record":{"password":"[redacted password]"}}
{"time":"2026-11-22T03:04:05Z","point":"` + string(p) + `","session":"work","lane":"main","actor":"robot","record":{"n":3}}
`
		id := regexp.MustCompile(`"id":"[0-9A-Z]{26}",`)
		if got := id.ReplaceAllString(git(t, r.Dir(), "show", done.Ref+":2026-11-22/"+string(p)+".jsonl"), ""); got != want {
			t.Errorf("files of the transcript: got\n%s", got)
		}
		if got := git(t, r.Dir(), "log", "--format=%s",
			done.Ref); got != "record: 1 lines\nrecord: 1 lines\nrecord: 2 lines\n" {
			t.Errorf("git log of the transcript:\n%s", got)
		}
		if got := git(t, r.Dir(), "ls-tree", "-r", "--name-only", done.Ref); got != "2026-11-22/"+string(p)+
			".jsonl\n2026-11-23/none.jsonl\n" {
			t.Errorf("git ls-tree of the transcript:\n%s", got)
		}
		git(t, r.Dir(), "fsck", "--strict")
		for id, want := range map[session.CheckpointID]int64{p: 3, "": 1, session.NewCheckpointID(at): 0} {
			if n, err := countOf(r, "work", id); n != want || err != nil {
				t.Errorf("lines of %q: got %d, %v", id, n, err)
			}
		}
		if n, err := countOf(r, "none", p); n != 0 || err != nil {
			t.Errorf("lines of an unknown session: got %d, %v, want 0", n, err)
		}
	}
}

func TestRecordIsAllOrNothing(t *testing.T) {
	r := newRepo(t, object.SHA1)
	var bad *LineError
	for _, line := range []string{"x", "[1]", `"a"`, `{"a":`} {
		_, err := Record(t.Context(), r, Batch{Session: "work", Time: time.Now(), Lines: []string{`{"a":1}`, line}})
		if !errors.As(err, &bad) || bad.Line != 2 || !errors.Is(err, ErrNotJSON) {
			t.Errorf("record the line %s: got %v, want ErrNotJSON at line 2", line, err)
		}
	}
	if id, err := r.Ref("refs/afs/transcript/work"); !id.IsZero() || err != nil {
		t.Errorf("ref of the transcript after the refused record: got %s, %v", id, err)
	}
}

func TestLongTranscriptsAreCut(t *testing.T) {
	r := newRepo(t, object.SHA1)
	at := time.Now()
	p := session.NewCheckpointID(at)
	line := `{"text":"` + strings.Repeat("word ", 5000) + `"}`
	for range 8 {
		if _, err := Record(t.Context(), r, Batch{Session: "work", Checkpoint: p, Time: at,
			Lines: []string{line}}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := countOf(r, "work", p); n != 8 || err != nil {
		t.Errorf("lines of the transcript: got %d, %v", n, err)
	}
	if names := strings.Count(git(t, r.Dir(), "ls-tree", "-r", "--name-only", "refs/afs/transcript/work"),
		"\n"); names != 3 {
		t.Errorf("files of the transcript: got %d", names)
	}
	git(t, r.Dir(), "fsck", "--strict")
}

func TestRecordersAtTheSameTime(t *testing.T) {
	r := newRepo(t, object.SHA1)
	at := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				if _, err := Record(t.Context(), r, Batch{Session: "work", Time: at, Lines: []string{`{"a":1}`}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n, err := countOf(r, "work", ""); n != 20 || err != nil {
		t.Errorf("lines of the transcript: got %d, %v", n, err)
	}
}

func TestNotes(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "main")
	gitDir := filepath.Join(dir, ".git")
	if _, err := Note(t.Context(), NoteRequest{GitDir: gitDir, Ref: "agent", JSON: []byte(`{}`)}); !errors.Is(err,
		ErrNoCommit) {
		t.Errorf("note in a repository without a commit: got %v", err)
	}
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "one")
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "two")
	head := strings.TrimSpace(git(t, dir, "rev-parse", "HEAD"))
	for _, c := range []struct{ json, commit, want string }{
		{`{"model": "m-1", "api_key": "` + letters(20) + `"}`, "", `{"model":"m-1","api_key":"[redacted secret]"}`},
		{`{"task":"x","model":"m-2"}`, "HEAD", `{"model":"m-2","api_key":"[redacted secret]","task":"x"}`},
		{`[1,2]`, head, `[1,2]`},
		{`{"a":"<b>"}`, "main", `{"a":"<b>"}`},
	} {
		n, err := Note(t.Context(), NoteRequest{GitDir: gitDir, Commit: c.commit, Ref: "agent", JSON: []byte(c.json)})
		if err != nil || n.Commit != head || n.Ref != "refs/notes/agent" {
			t.Fatalf("add the note %s: got %+v, %v", c.json, n, err)
		}
		want := strings.ReplaceAll(c.want, "[redacted secret]", "[redacted api_key]")
		if got := strings.TrimSpace(git(t, dir, "notes", "--ref=agent", "show", head)); got != want {
			t.Errorf("git notes show after the note %s: got %s", c.json, got)
		}
		if got := strings.TrimSpace(git(t, dir, "notes", "--ref=agent", "list", head)); got != n.Note {
			t.Errorf("id of the note: got %s, want %s", n.Note, got)
		}
		if !json.Valid([]byte(git(t, dir, "cat-file", "blob", n.Note))) {
			t.Errorf("note of the invalid JSON %s was accepted", c.json)
		}
	}
	for _, r := range []NoteRequest{{Ref: "a..b"}, {Ref: ""}, {Ref: "-x y"}} {
		r.GitDir, r.JSON = gitDir, []byte(`{}`)
		if _, err := Note(t.Context(), r); !errors.Is(err, ErrNotesRef) {
			t.Errorf("add a note to the ref %q: got %v, want ErrNotesRef", r.Ref, err)
		}
	}
	for _, commit := range []string{"nope", "--all", "HEAD^{tree}"} {
		if _, err := Note(t.Context(), NoteRequest{GitDir: gitDir, Ref: "agent", Commit: commit,
			JSON: []byte(`{}`)}); !errors.Is(err, ErrNoCommit) {
			t.Errorf("add a note to the commit %q: got %v, want ErrNoCommit", commit, err)
		}
	}
	if _, err := Note(t.Context(), NoteRequest{GitDir: gitDir, Ref: "agent", JSON: []byte(`{`)}); !errors.Is(err,
		ErrNotJSON) {
		t.Error(err)
	}
}

// countOf returns the number of records of the checkpoint p in the transcript of the session name.
func countOf(r *session.Repo, name string, p session.CheckpointID) (n int64, err error) {
	lines, _, err := Read(r, name, nil)
	for _, l := range lines {
		if l.Checkpoint == p {
			n++
		}
	}
	return n, err
}

func TestTurns(t *testing.T) {
	r := newRepo(t, object.SHA1)
	lines := []string{
		`{"type":"system","text":"before"}`, `{"type":"prompt","text":"one"}`, `{"type":"tool","role":"assistant"}`,
		`{"type":"tool_result","role":"user"}`,
		`{"role":"user","text":"two"}`, `{"role":"assistant"}`, `{"turn":7,"text":"seven"}`, `{"turn":7}`,
	}
	if _, err := Record(t.Context(), r, Batch{Session: "work", Time: time.Now(), Lines: lines}); err != nil {
		t.Fatal(err)
	}
	turns := func() (list []int) {
		t.Helper()
		read, _, err := Read(r, "work", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range read {
			list = append(list, l.Turn)
		}
		return list
	}
	want := []int{0, 1, 1, 1, 2, 2, 7, 7}
	if got := turns(); !slices.Equal(got, want) {
		t.Errorf("turns of the records: got %v, want %v", got, want)
	}
	read, _, _ := Read(r, "work", nil)
	erased, _, err := Erase(t.Context(), r, EraseRequest{Session: "work",
		IDs: map[string]bool{read[1].ID: true, read[6].ID: true}, Stone: Tombstone{Time: time.Now(), By: "me"}}, nil)
	if err != nil || len(erased) != 2 {
		t.Errorf("erased: got %v, %v, want two records", erased, err)
	}
	if got := turns(); !slices.Equal(got, want) {
		t.Errorf("turns after two of their first records were erased: got %v, want %v", got, want)
	}
	if !HasPrompt([]string{"{}", `{"type":"prompt"}`}) || HasPrompt([]string{`{"role":"assistant"}`}) {
		t.Error("BeginTurn takes another record for a prompt")
	}
}
