package writeback

import (
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/reffile"
)

// TestAnnotationsArePushedOnce checks that the annotations of a Repo are pushed if the session remote has none, and
// that later annotations of the session remote are never replaced.
func TestAnnotationsArePushedOnce(t *testing.T) {
	for _, mode := range []Mode{ModeShared, ModeThin} {
		t.Run(string(mode), func(t *testing.T) {
			p := newPlace(t, object.SHA1)
			from := p.Origin.Path
			if mode == ModeThin {
				from = ""
			}
			to := newTestRemote(t, "http", object.SHA1, from)
			p.copier()
			repo, err := p.Open()
			if err != nil {
				t.Fatal(err)
			}
			file := reffile.File{Ref: session.AnnotationsRef(sessionName), Name: "annotations.jsonl"}
			write := func(text string) string {
				t.Helper()
				v, err := (&reffile.Local{Repo: repo}).Change(t.Context(), file, "annotate",
					func(reffile.Version) ([]byte, error) { return []byte(text), nil })
				if err != nil {
					t.Fatal(err)
				}
				return v.Commit.String()
			}
			first := write("one\n")
			q := p.queue(to, QueueOptions{Base: mode, BaseURL: baseURL})
			wantSync(t, q)
			if got := to.ref(file.Ref); got != first {
				t.Fatalf("annotations on the session remote: got %q, want %s", got, first)
			}
			if got := run(t, to.dir, "", "cat-file", "blob", file.Ref+":"+file.Name); got != "one" {
				t.Errorf("annotations on the session remote: got %q", got)
			}
			// A reviewer changes the annotations on the session remote, and a command changes those of the Repo.
			run(t, to.dir, "", "update-ref", file.Ref,
				run(t, to.dir, "", "commit-tree", "-m", "x", "-p", first, first+"^{tree}"))
			theirs := to.ref(file.Ref)
			write("one\ntwo\n")
			p.Carried(p.Commit("a", "one"))
			wantSync(t, q)
			if got := to.ref(file.Ref); got != theirs {
				t.Errorf("annotations of the reviewer: got %s, want %s", got, theirs)
			}
			if st := q.Status(); st.Pending != 0 || len(st.Diverged)+len(st.Notices) != 0 || st.Mode != mode {
				t.Errorf("status: got %+v, want mode %s and nothing pending", st, mode)
			}
		})
	}
}
