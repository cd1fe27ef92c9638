package githttp

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestPushToManyRefs checks that with many refs, the server itself writes them for a push in the same form as git, and
// that git compares the push with few of them.
func TestPushToManyRefs(t *testing.T) {
	w := newWorld(t, Limits{})
	for _, format := range []string{"sha1", "sha256"} {
		repo, url := w.repo("many-"+format, format)
		work := w.work(format)
		w.do(work, "push", "-q", url, "main")
		first := w.do(work, "rev-parse", "main")
		var refs []records.RefUpdate
		for i := range 5000 {
			name := fmt.Sprintf("refs/%s/team-%d/r%d", []string{"heads", "tags"}[i%2], i%97, i)
			refs = append(refs, records.RefUpdate{Name: name, Old: strings.Repeat("0", len(first)), New: first})
		}
		if _, err := w.db.Repos.Push(t.Context(), records.Push{RepoID: repo.ID, Updates: refs}); err != nil {
			t.Fatal(err)
		}
		_, token := w.token(records.Token{RepoID: repo.ID})
		for _, text := range []string{"two", "three"} {
			want := w.commit(work, "file", text)
			w.do(work, "push", "-q", url, "main", "main:refs/heads/new-"+text)
			w.do(work, "push", "-q", url, "main:refs/heads/team-0/r0", ":refs/heads/new-"+text)
			if refs := w.refs(repo); refs["refs/heads/main"] != want || refs["refs/heads/team-0/r0"] != want ||
				len(refs) != 5001 {
				t.Errorf("%s: %d refs, main is %s, want 5001 and %s", format, len(refs), refs["refs/heads/main"], want)
			}
			at, err := w.set.Acquire(t.Context(), repo.ID)
			if err != nil {
				t.Fatal(err)
			}
			cmd := gitcmd.New(t.Context(), "receive-pack", "--stateless-rpc", "--http-backend-info-refs", at.Dir)
			cmd.Env = w.set.Git().Env
			out, err := gitcmd.Output(cmd)
			if err != nil {
				t.Fatal(err)
			}
			at.Release()
			for _, version := range []string{"version=2", "version=1"} {
				status, _, got := w.get("GET", "/git/ns/"+repo.Name+".git/info/refs?service="+receivePack, "Bearer "+token, nil,
					"Git-Protocol", version)
				got = strings.Replace(got, "000eversion 1\n", "", 1)
				if status != 200 || got != "001f# service=git-receive-pack\n0000"+string(out) {
					t.Errorf("%s, %s: refs for a push: got %d and %d bytes, want %d", format, version, status, len(got), len(out))
				}
			}
		}
		// Set a branch to a commit whose tree is missing.
		tree := strings.Repeat("1", len(first))
		commit := exec.Command("git", "hash-object", "-t", "commit", "-w", "--stdin", "--literally")
		commit.Dir = work
		commit.Stdin = strings.NewReader("tree " + tree + "\nparent " + w.do(work, "rev-parse", "main") +
			"\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nx\n")
		id, err := commit.Output()
		if err != nil {
			t.Fatal(err)
		}
		body := w.pushOf(work, w.do(work, "rev-parse", "main"), strings.TrimSpace(string(id)))
		if _, _, got := w.get("POST", "/git/ns/"+repo.Name+".git/"+receivePack, "Bearer "+token, body, "Content-Type",
			"application/x-"+receivePack+"-request"); !strings.Contains(got, "ng refs/heads/main") {
			t.Errorf("%s: commit without its tree: got %q", format, got)
		}
	}
}

// pushOf returns the body of a push that sets main to a commit, and whose pack contains only the commit itself.
func (w *world) pushOf(dir, old, commit string) []byte {
	w.t.Helper()
	pack := exec.Command("git", "pack-objects", "--stdout", "-q")
	pack.Dir, pack.Stdin = dir, strings.NewReader(commit+"\n")
	packed, err := pack.Output()
	if err != nil {
		w.t.Fatal(err)
	}
	line := old + " " + commit + " refs/heads/main\x00report-status"
	if len(old) == 64 {
		line += " object-format=sha256"
	}
	return append(fmt.Appendf(nil, "%04x%s0000", len(line)+4, line), packed...)
}
