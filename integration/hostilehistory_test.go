package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// behind puts a commit with this message into the history of a branch, below three others: one more than a mount
// fetches at first.
func (w *world) behind(r *gittest.Repo, message func(io.Writer) error) {
	w.Helper()
	head := w.git(r.Path, "rev-parse", "main")
	tree := w.git(r.Path, "rev-parse", "main^{tree}")
	cmd := exec.Command("git", "-C", r.Path, "hash-object", "-t", "commit", "-w", "--stdin")
	in, err := cmd.StdinPipe()
	if err != nil {
		w.Fatal(err)
	}
	var id bytes.Buffer
	cmd.Stdout = &id
	check2(w, cmd.Start())
	_, err = fmt.Fprintf(in,
		"tree %s\nparent %s\nauthor a <a@example.invalid> 1700000000 +0000\ncommitter a <a@example.invalid> 1700000000 +0000\n\n", tree, head)
	check2(w, errors.Join(err, message(in), in.Close(), cmd.Wait()))
	top := strings.TrimSpace(id.String())
	for range 3 {
		top = w.git(r.Path, "-c", "user.name=a", "-c", "user.email=a@example.invalid", "commit-tree", tree, "-p",
			top, "-m", "top")
	}
	w.git(r.Path, "update-ref", "refs/heads/main", top)
	w.git(r.Path, "repack", "-q", "-a", "-d") // otherwise the server compresses the commit for each fetch
}

// A commit that inflates beyond the limit for commits is refused and named in the status, and requested again after
// growing pauses. Files of the mount can be read the whole time.
func TestCompressedBomb(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	files := alone("bomb", 5)
	w.commit(r, files)
	w.behind(r, func(to io.Writer) error {
		line := bytes.Repeat([]byte("a"), 1<<20)
		for range 260 { // the pack has a thousandth of that size
			if _, err := to.Write(line); err != nil {
				return err
			}
		}
		return nil
	})
	s := w.serve(gittest.ServerOptions{})
	m := w.mount(s.URL("r.git"), "--prefetch", "none")
	for path, file := range files {
		if err := readOne(m.path(path), file); err != nil {
			t.Errorf("read while history is refused: %v", err)
		}
	}
	s.Log().Reset()
	histories := func() (n int) {
		for _, q := range s.Log().Fetches() {
			if q.Blobs == 0 {
				n++
			}
		}
		return n
	}
	var pauses []time.Duration
	var next time.Time
	st := m.await("two refusals", func(st control.MountStatus) bool {
		if len(st.Refused) == 1 && st.Refused[0].Next != nil && !st.Refused[0].Next.Equal(next) {
			next = *st.Refused[0].Next
			pauses = append(pauses, time.Until(next))
		}
		return len(pauses) == 2
	})
	if got := st.Refused[0]; got.Object != "" || !strings.Contains(got.Cause, "limit") ||
		st.State != control.StateDegraded {
		t.Errorf("status: state %s, refused %+v; want degraded, and history that is over a limit", st.State, got)
	}
	if pauses[0] >= pauses[1] {
		t.Errorf("pauses between requests: got %v, want the second to be the longer one", pauses)
	}
	if n := histories(); n > 2 {
		t.Errorf("requests for history until the second refusal: got %d, want at most 2", n)
	}
	if text := w.ok("status", m.Dir); !strings.Contains(text, "refused   history") {
		t.Errorf("status does not name the refused object:\n%s", text)
	}
}

// History that does not fit on the disk is not requested again until there is space; then it is fetched automatically.
func TestHistoryWaitsForRoom(t *testing.T) {
	t.Parallel()
	w := newWorldOnSmallDisk(t, 96<<20)
	r := w.repo("r.git", object.SHA1)
	w.commit(r, alone("room", 5))
	w.behind(r, func(to io.Writer) error {
		var noise bytes.Buffer
		for range 4 << 20 {
			noise.WriteByte(byte('!' + rand.IntN(90)))
		}
		_, err := to.Write(noise.Bytes())
		return err
	})
	s := w.serve(gittest.ServerOptions{})
	away := s.Inject(gittest.Fault{Kind: gittest.Status, On: gittest.Fetch, Skip: 1}) // all but the trees
	m := w.mount(s.URL("r.git"), "--prefetch", "none")
	w.until("history was requested", func() bool { return away.Hits() > 0 })
	free := w.fill()
	s.Log().Reset()
	away.Remove()
	m.await("status says that the disk is full", func(st control.MountStatus) bool {
		return strings.Contains(st.Error, syscall.ENOSPC.Error())
	})
	before := len(s.Log().Fetches())
	time.Sleep(5 * time.Second) // more than two checks for space, because only time shows that nothing is requested
	if n := len(s.Log().Fetches()) - before; n > 0 {
		t.Errorf("fetches while the disk was full: got %d, want none", n)
	}
	free()
	m.await("history is here", func(st control.MountStatus) bool {
		return st.History == control.HistoryComplete && st.State == control.StateMounted
	})
	if n := len(s.Log().Fetches()) - before; n > 2 {
		t.Errorf("fetches after space was freed: got %d, want at most 2", n)
	}
}
