package integration

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/s3test"
)

// s3Fault is a failure of the S3 service of a relay.
type s3Fault struct {
	name   string
	stored bool // another relay has stored the commit there before
	early  bool // the failure begins before the first host mounts; otherwise after it
	begin  func(t *testing.T, s *s3test.Server, f *s3test.Front)
	end    func(t *testing.T, s *s3test.Server, f *s3test.Front)
	shows  func(r *relayed) bool // the relay has noticed the failure; nil: nothing shows it
}

// answerWith returns a fault that answers requests of some methods with a status.
func answerWith(status int, methods ...string) func(http.ResponseWriter, *http.Request) bool {
	return func(rw http.ResponseWriter, r *http.Request) bool {
		for _, m := range methods {
			if r.Method == m {
				rw.WriteHeader(status)
				return true
			}
		}
		return false
	}
}

// slow delays each request for longer than a relay waits.
func slow(_ http.ResponseWriter, r *http.Request) bool {
	select {
	case <-time.After(5 * time.Second):
	case <-r.Context().Done():
	}
	return false
}

// s3Faults are the failures.
var s3Faults = []s3Fault{
	{
		name:  "killed",
		begin: func(_ *testing.T, s *s3test.Server, _ *s3test.Front) { s.Kill() },
		end:   func(t *testing.T, s *s3test.Server, _ *s3test.Front) { s.Run(t) },
		shows: func(r *relayed) bool { return r.metric("objects_failures_total") > 0 },
	},
	{
		name: "killed when everything is stored", stored: true,
		begin: func(_ *testing.T, s *s3test.Server, _ *s3test.Front) { s.Kill() },
		end:   func(t *testing.T, s *s3test.Server, _ *s3test.Front) { s.Run(t) },
	},
	{
		name: "slow", stored: true,
		begin: func(_ *testing.T, _ *s3test.Server, f *s3test.Front) { f.Fault(slow) },
	},
	{
		name: "full", early: true,
		begin: func(_ *testing.T, _ *s3test.Server, f *s3test.Front) {
			f.Fault(answerWith(http.StatusInsufficientStorage, http.MethodPut))
		},
		shows: func(r *relayed) bool {
			return r.metric("objects_failures_total") > 0 && r.metric("objects_stored_total") == 0
		},
	},
	{
		name: "corrupt", stored: true, early: true,
		begin: func(t *testing.T, s *s3test.Server, _ *s3test.Front) { corrupt(t, s.Dir) },
		shows: func(r *relayed) bool { return r.metric("damaged_files_total") > 0 },
	},
}

// corrupt changes a byte in the middle of every file below a directory.
func corrupt(t *testing.T, dir string) {
	t.Helper()
	changed := 0
	check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil || info.Size() == 0 {
			return err
		}
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, info.Size()/2); err != nil {
			return err
		}
		b[0] ^= 1
		changed++
		_, err = f.WriteAt(b, info.Size()/2)
		return err
	}))
	if changed == 0 {
		t.Fatal("the S3 service has no files")
	}
}

// Whatever happens to the S3 service of a relay while hosts mount and read everything, each host has the right files.
func TestRelayWithFailingS3(t *testing.T) {
	t.Parallel()
	s3 := s3test.Start(t)
	front := s3test.NewFront(t, s3)
	w := newWorld(t)
	for name, value := range s3test.Credentials() {
		w.env = append(w.env, name+"="+value)
	}
	repo := w.repo("app.git", 0)
	must[object.ID](t)(repo.Sized(10, 40))
	s :=
		w.serve(gittest.ServerOptions{Config: []string{tellSizes, "uploadpack.allowFilter=true",
			"uploadpack.allowAnySHA1InWant=true"}})
	clone := w.clone(s.URL("app.git"))
	for i, fault := range s3Faults {
		t.Run(fault.name, func(t *testing.T) {
			store := front.StoreURL(fmt.Sprint("relay", i))
			if fault.stored {
				r := w.relay("--objects", store)
				h := w.hosts(t, 1)[0]
				h.compareTrees(h.bare(s.URL("app.git"), "--via", r.url).Dir, clone)
				r.end() // waits for uploads
			}
			if fault.end != nil {
				defer fault.end(t, s3, front)
			}
			defer front.Fault(nil)
			r := w.relay("--objects", store)
			var first sync.Once
			begin := func() { first.Do(func() { fault.begin(t, s3, front) }) }
			if fault.early {
				begin()
			}
			var all sync.WaitGroup
			var answers atomic.Int64
			hosts := w.hosts(t, 3)
			for _, h := range hosts {
				all.Go(func() {
					m := h.bare(s.URL("app.git"), "--via", r.url)
					begin()
					h.compareTrees(m.Dir, clone)
					got := m.status().Network.Relay
					if got == nil || got.Answers+got.FallThroughs == 0 {
						t.Errorf("status of a host: got %+v, want requests to the relay", got)
						return
					}
					answers.Add(int64(got.Answers))
				})
			}
			all.Wait()
			// On a busy machine, the relay may be silent for so long that a host leaves it.
			if answers.Load() == 0 {
				t.Error("the relay has answered no host")
			}
			if fault.shows != nil {
				w.until("the relay shows the failure of S3", func() bool { return fault.shows(r) })
			}
			r.end()
		})
	}
}

// A relay that is stopped delays a read for a moment, also in the middle of a build, and the status of the mount names
// the cause.
func TestRelayHangs(t *testing.T) {
	w := newWorld(t)
	repo := w.repo("app.git", 0)
	must[object.ID](t)(repo.Sized(10, 40))
	s := w.serve(gittest.ServerOptions{})
	clone := w.clone(s.URL("app.git"))
	r := w.relay()
	m := w.bare(s.URL("app.git"), "--via", r.url)
	check(t, r.cmd.Process.Signal(syscall.SIGSTOP))
	defer r.cmd.Process.Signal(syscall.SIGCONT)
	var reads sync.WaitGroup
	reads.Go(func() { w.compareTrees(m.Dir, clone) })
	// The pause may be as short as a second, so no process is started for a look.
	m.await("status shows that the relay is not used for a while", func(st control.MountStatus) bool {
		r := st.Network.Relay
		return r != nil && r.Paused && r.LastFailure != ""
	})
	reads.Wait()
	if got := m.status().Network.Relay; got.FallThroughs == 0 {
		t.Errorf("status of a mount whose relay hangs: got %+v, want requests that were sent to the remote", got)
	}
}
