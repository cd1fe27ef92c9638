package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/git/refname"
)

// packing returns a function that writes a pack of the objects that git rev-list lists in a repository.
func packing(dir string, revs ...string) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		cmd := exec.CommandContext(ctx, "git", "pack-objects", "--revs", "--stdout", "-q")
		cmd.Dir, cmd.Stdin, cmd.Stdout = dir, strings.NewReader(strings.Join(revs, "\n")+"\n"), w
		return cmd.Run()
	}
}

// push opens a push, sends it, and returns the results of its updates.
func push(t testing.TB, r *Remote, req PushRequest) ([]error, error) {
	t.Helper()
	p, err := r.OpenPush(t.Context(), nil)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.Send(t.Context(), req)
}

func kinds(results []error) []RejectKind {
	var got []RejectKind
	for _, err := range results {
		var rejected *Rejected
		if errors.As(err, &rejected) {
			got = append(got, rejected.Kind)
		} else if err == nil {
			got = append(got, 255)
		}
	}
	return got
}

const done = RejectKind(255)

func wantKinds(t *testing.T, results []error, err error, want ...RejectKind) {
	t.Helper()
	if err != nil {
		t.Fatalf("push failed: %v", err)
	}
	if got := kinds(results); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("results of the updates: got %v (%v), want %v", got, results, want)
	}
}

func refOf(t testing.TB, dir, name string) string {
	t.Helper()
	cmd := exec.Command("git", "rev-parse", "-q", "--verify", name)
	cmd.Dir = dir
	out, _ := cmd.Output()
	return strings.TrimSpace(string(out))
}

// eachWay runs a test with every transport to a repository that accepts pushes, or with two of them if the format is
// SHA-256: no transport looks at ids.
func eachWay(t *testing.T, f object.Format, run func(t *testing.T, dir string, r *Remote)) {
	fresh := func(t *testing.T) (root, dir string) {
		root = t.TempDir()
		dir = filepath.Join(root, "r")
		emptyRepo(t, dir, f)
		return root, dir
	}
	t.Run("local", func(t *testing.T) {
		_, dir := fresh(t)
		run(t, dir, openRemote(t, dir, Options{}))
	})
	t.Run("http", func(t *testing.T) {
		root, dir := fresh(t)
		run(t, dir, openRemote(t, serveWeb(t, root, false).URL+"/r", Options{}))
	})
	if f == object.SHA256 {
		return
	}
	t.Run("ssh", func(t *testing.T) {
		_, dir := fresh(t)
		run(t, dir, openRemote(t, serveSSH(t)+dir, Options{}))
	})
	t.Run("git", func(t *testing.T) {
		root, dir := fresh(t)
		git(t, dir, "", "config", "daemon.receivepack", "true")
		run(t, dir, openRemote(t, serveGitDaemon(t, root)+"/r", Options{}))
	})
}

func TestPush(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		fx := makeRepo(t, filepath.Join(t.TempDir(), "from"), f)
		t.Run(f.String(), func(t *testing.T) {
			eachWay(t, f, func(t *testing.T, dir string, r *Remote) {
				// Push several refs into an empty repository, with more data than fits into one packet.
				results, err := push(t, r, PushRequest{
					Updates: []RefUpdate{{Name: "refs/heads/main", New: fx.first}, {Name: "refs/afs/x/y", New: fx.first}},
					Pack:    packing(fx.dir, fx.first.String()), Atomic: true,
				})
				wantKinds(t, results, err, done, done)
				// The refs of the server are reported, but only those that were requested.
				p, err := r.OpenPush(t.Context(), []string{"refs/heads/"})
				if err != nil {
					t.Fatal(err)
				}
				if len(p.Refs) != 1 || p.Refs[0] != (Ref{Name: "refs/heads/main", ID: fx.first}) || p.Format != f ||
					!p.Atomic || !p.Delete {
					t.Errorf("refs that the server reported: got %+v", p.Receiver)
				}
				results, err = p.Send(t.Context(), PushRequest{
					Updates: []RefUpdate{{Name: "refs/heads/main", Old: fx.first, New: fx.head}, {Name: "refs/tags/v1", New: fx.tag}},
					Pack:    packing(fx.dir, fx.tag.String(), "^"+fx.first.String()),
				})
				p.Close()
				wantKinds(t, results, err, done, done)
				git(t, dir, "", "fsck", "--strict")

				// Updates are refused if the ref has another value than expected, if it exists although it must not,
				// and if it does not exist although it must.
				results, err = push(t, r, PushRequest{Updates: []RefUpdate{
					{Name: "refs/heads/main", Old: fx.first, New: fx.first},
					{Name: "refs/afs/x/y", New: fx.head},
					{Name: "refs/heads/none", Old: fx.first, New: fx.head},
					{Name: "refs/heads/new", New: fx.head},
				}})
				if err != nil || len(results) != 4 || results[1] == nil || results[2] == nil || results[3] != nil {
					t.Fatalf("updates with wrong old values: got %v, %v", results, err)
				}
				if got := refOf(t, dir, "refs/heads/main"); got != fx.head.String() {
					t.Errorf("main after the refused push: got %s", got)
				}
				// An atomic push updates all refs or none.
				results, err = push(t, r, PushRequest{Atomic: true, Updates: []RefUpdate{
					{Name: "refs/heads/new", Old: fx.head, New: fx.first},
					{Name: "refs/afs/x/y", Old: fx.head, New: fx.head},
				}})
				if err != nil || results[0] == nil || results[1] == nil || refOf(t, dir, "refs/heads/new") != fx.head.String() {
					t.Errorf("atomic push with a wrong old value: got %v, %v", results, err)
				}
				// Rewrite a branch, and remove one.
				results, err = push(t, r, PushRequest{Updates: []RefUpdate{
					{Name: "refs/heads/new", Old: fx.head, New: fx.first},
					{Name: "refs/afs/x/y", Old: fx.first},
				}})
				wantKinds(t, results, err, done, done)
				results, err = push(t, r, PushRequest{Updates: []RefUpdate{{Name: "refs/tags/v1", Old: fx.tag}}})
				wantKinds(t, results, err, done)
				if refOf(t, dir, "refs/tags/v1")+refOf(t, dir, "refs/afs/x/y") != "" ||
					refOf(t, dir, "refs/heads/new") != fx.first.String() {
					t.Error("the removed branch still exists")
				}
			})
		})
	}
}

func TestPushIsRefused(t *testing.T) {
	fx := makeRepo(t, filepath.Join(t.TempDir(), "from"), object.SHA1)
	eachWay(t, object.SHA1, func(t *testing.T, dir string, r *Remote) {
		all := PushRequest{
			Updates: []RefUpdate{{Name: "refs/heads/main", New: fx.head}, {Name: "refs/heads/b", New: fx.first}},
			Pack:    packing(fx.dir, fx.head.String()),
		}
		hook := func(name, script string) func() {
			path := filepath.Join(dir, "hooks", name)
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
				t.Fatal(err)
			}
			return func() { os.Remove(path) }
		}
		remove := hook("pre-receive", "echo nobody may; exit 1")
		results, err := push(t, r, all)
		wantKinds(t, results, err, RejectHook, RejectHook)
		if !strings.Contains(results[0].Error(), "nobody may") {
			t.Errorf("the error does not contain the hook's message: %v", results[0])
		}
		remove()
		// Objects are missing: the pack has a commit without the objects of its parent.
		lacking := all
		lacking.Pack = packing(fx.dir, fx.head.String(), "^"+fx.first.String())
		results, err = push(t, r, lacking)
		wantKinds(t, results, err, RejectMissing, RejectMissing)
		// The server's disk is full.
		git(t, dir, "", "config", "receive.maxInputSize", "1000")
		results, err = push(t, r, all)
		if err == nil { // otherwise the server closes the connection before it has read the whole pack
			wantKinds(t, results, err, RejectUnpack, RejectUnpack)
		}
		git(t, dir, "", "config", "--unset", "receive.maxInputSize")

		remove = hook("update", `test "$1" != refs/heads/b`)
		results, err = push(t, r, all)
		wantKinds(t, results, err, done, RejectHook)
		remove()
		git(t, dir, "", "config", "receive.denyNonFastForwards", "true")
		git(t, dir, "", "config", "receive.denyDeletes", "true")
		results, err = push(t, r, PushRequest{Updates: []RefUpdate{{Name: "refs/heads/main", Old: fx.head, New: fx.first}}})
		wantKinds(t, results, err, RejectFastForward)
		results, err = push(t, r, PushRequest{Updates: []RefUpdate{{Name: "refs/heads/main", Old: fx.head}}})
		wantKinds(t, results, err, RejectDeletion)
		git(t, dir, "", "fsck", "--strict")
	})
}

// TestPushWithoutEnd checks that an incomplete pack changes nothing, and that Send returns the error of the function
// that writes the pack.
func TestPushWithoutEnd(t *testing.T) {
	fx := makeRepo(t, filepath.Join(t.TempDir(), "from"), object.SHA1)
	broken := errors.New("disk is on fire")
	var whole bytes.Buffer
	if err := packing(fx.dir, fx.head.String())(t.Context(), &whole); err != nil {
		t.Fatal(err)
	}
	eachWay(t, object.SHA1, func(t *testing.T, dir string, r *Remote) {
		for _, n := range []int{0, 20, 100_000, whole.Len() - 1} {
			_, err := push(t, r, PushRequest{
				Updates: []RefUpdate{{Name: "refs/heads/main", New: fx.head}},
				Pack: func(_ context.Context, w io.Writer) error {
					if _, err := w.Write(whole.Bytes()[:n]); err != nil {
						return fmt.Errorf("write: %w", err)
					}
					return broken
				},
			})
			if !errors.Is(err, broken) {
				t.Errorf("a pack that fails after %d bytes: got %v", n, err)
			}
			if got := refOf(t, dir, "refs/heads/main"); got != "" {
				t.Fatalf("main after the refused push: got %s", got)
			}
		}
		// A cancelled push returns at once.
		ctx, cancel := context.WithCancel(t.Context())
		p, err := r.OpenPush(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		_, err = p.Send(ctx, PushRequest{Updates: []RefUpdate{{Name: "refs/heads/main", New: fx.head}},
			Pack: func(ctx context.Context, w io.Writer) error {
				w.Write(whole.Bytes()[:1000])
				cancel()
				<-ctx.Done()
				return ctx.Err()
			}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled push: got %v", err)
		}
		results, err := push(t, r, PushRequest{Updates: []RefUpdate{{Name: "refs/heads/main", New: fx.head}},
			Pack: packing(fx.dir, fx.head.String())})
		wantKinds(t, results, err, done)
	})
}

func TestPushWithToken(t *testing.T) {
	fx := makeRepo(t, filepath.Join(t.TempDir(), "from"), object.SHA1)
	root := t.TempDir()
	emptyRepo(t, filepath.Join(root, "r"), object.SHA1)
	s := serveWeb(t, root, false)
	var good = "right"
	s.wrap = func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		if _, pass, _ := r.BasicAuth(); pass != good {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("right")
	r := openRemote(t, s.URL+"/r", Options{Login: NewLogin("", file)})
	p, err := r.OpenPush(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	// The token is replaced while the push is open, so the pack is written a second time.
	good = "new"
	write("new")
	results, err := p.Send(t.Context(), PushRequest{Updates: []RefUpdate{{Name: "refs/heads/main", New: fx.head}},
		Pack: packing(fx.dir, fx.head.String())})
	wantKinds(t, results, err, done)
	p.Close()
	good = "revoked"
	if _, err := r.OpenPush(t.Context(), nil); !errors.Is(err, ErrAuth) {
		t.Errorf("push with a revoked token: got %v", err)
	}
	s.wrap = nil
	git(t, filepath.Join(root, "r"), "", "config", "http.receivepack", "false")
	if _, err := r.OpenPush(t.Context(), nil); !errors.Is(err, ErrForbidden) {
		t.Errorf("push to a server that refuses pushes: got %v", err)
	}
	if _, err := openRemote(t, s.URL+"/none", Options{}).OpenPush(t.Context(), nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("push to a missing repository: got %v", err)
	}
	if _, err := openRemote(t, filepath.Join(root, "none"), Options{}).OpenPush(t.Context(), nil); !errors.Is(err,
		ErrNotFound) {
		t.Errorf("push to a missing local repository: got %v", err)
	}
}

// TestPushStalls checks that the client ends a push if the server is silent for too long, but not if it sends keepalive
// packets.
func TestPushStalls(t *testing.T) {
	fx := makeRepo(t, filepath.Join(t.TempDir(), "from"), object.SHA1)
	root := t.TempDir()
	dir := filepath.Join(root, "r")
	emptyRepo(t, dir, object.SHA1)
	hook := filepath.Join(dir, "hooks", "pre-receive")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\nexec sleep 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := serveWeb(t, root, false)
	for _, url := range []string{dir, s.URL + "/r"} {
		r := openRemote(t, url, Options{Stall: 100 * time.Millisecond})
		_, err := push(t, r, PushRequest{Updates: []RefUpdate{{Name: "refs/heads/main", New: fx.head}},
			Pack: packing(fx.dir, fx.head.String())})
		if !errors.Is(err, ErrStalled) {
			t.Errorf("%s: push with a hook that sleeps: got %v", url, err)
		}
	}
}

// TestPushToManyRefs checks that all refs of a server with many refs are requested only once.
func TestPushToManyRefs(t *testing.T) {
	root := t.TempDir()
	fx := makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	var refs strings.Builder
	for i := range advertisedLong + 10 {
		fmt.Fprintf(&refs, "create refs/heads/b%d %s\n", i, fx.head)
	}
	git(t, fx.dir, refs.String(), "update-ref", "--stdin")
	s := serveWeb(t, root, false)
	r := openRemote(t, s.URL+"/r", Options{})
	for i := range 3 {
		p, err := r.OpenPush(t.Context(), []string{"refs/heads/b7", "refs/afs/"})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, ref := range p.Refs {
			switch {
			case strings.HasPrefix(ref.Name, "refs/heads/b7"):
				n++
			case !strings.HasPrefix(ref.Name, "refs/afs/"):
				t.Errorf("unexpected ref %s was reported", ref.Name)
			}
		}
		if n != 11 {
			t.Errorf("round %d: got %d refs", i, n)
		}
		results, err := p.Send(t.Context(),
			PushRequest{Updates: []RefUpdate{{Name: fmt.Sprintf("refs/afs/%d", i), New: fx.first}}})
		wantKinds(t, results, err, done)
		p.Close()
	}
	gets := 0
	for _, line := range s.requests() {
		if strings.HasPrefix(line, "GET") {
			gets++
		}
	}
	if gets != 2 {
		t.Errorf("got %d advertisements, want one of each service:\n%s", gets, strings.Join(s.requests(), "\n"))
	}
}

func TestReceiverWords(t *testing.T) {
	const id = "1111111111111111111111111111111111111111"
	packets := func(lines ...string) string {
		var b []byte
		for _, l := range lines {
			b = pktline.AppendLine(b, l)
		}
		return string(pktline.AppendFlush(b))
	}
	for text, want := range map[string]string{
		packets(id + " refs/heads/a\x00report-status atomic"):                    "[refs/heads/a]",
		packets("version 1", id+" refs/heads/a\x00report-status"):                "[refs/heads/a]",
		packets(strings.Repeat("0", 40) + " capabilities^{}\x00report-status"):   "[]",
		packets(id+" .have\x00report-status", id+" refs/heads/b", "shallow "+id): "[refs/heads/b]",
		packets(id+" refs/heads/a\x00report-status", "x refs/heads/b"):           "error",
		packets(id + " refs/heads/a\x00report-status object-format=md5"):         "error",
		"0000":            "error",
		"0010":            "error",
		packets("ERR no"): "error",
		packets(id + " refs/heads/a\x00object-format=sha256"): "error",
	} {
		about, err := parseReceiver(newPktReader(strings.NewReader(text)), nil)
		got := "error"
		if err == nil {
			got = "["
			for _, r := range about.Refs {
				got += r.Name
			}
			got += "]"
		}
		if got != want {
			t.Errorf("report line %q: got %s (%v), want %s", text, got, err, want)
		}
	}
}

func FuzzReceiver(f *testing.F) {
	f.Add([]byte("0000"))
	f.Add([]byte("001f# service=git-receive-pack\n0000003e1111111111111111111111111111111111111111 refs/heads/a\x00atomic0000"))
	f.Fuzz(func(t *testing.T, text []byte) {
		about, err := parseReceiver(newPktReader(bytes.NewReader(text)), nil)
		for _, r := range about.Refs {
			if err == nil && (!refname.Valid(r.Name) || r.ID.IsZero()) {
				t.Errorf("parsed report: got %+v", r)
			}
		}
	})
}

func FuzzReport(f *testing.F) {
	f.Add([]byte("000eunpack ok\n0014ok refs/heads/a\n0000"), false)
	f.Add([]byte("000eunpack no\n001cng refs/heads/a because\n0000"), false)
	f.Add([]byte("0028\x01000eunpack ok\n0014ok refs/heads/a\n00000000"), true)
	f.Fuzz(func(t *testing.T, text []byte, band bool) {
		p := &Push{Receiver: Receiver{sideBand: band}}
		results, err := p.report(newPktReader(bytes.NewReader(text)),
			[]RefUpdate{{Name: "refs/heads/a", New: object.MustID(strings.Repeat("1", 40))}})
		if err == nil && len(results) != 1 {
			t.Errorf("got %d results", len(results))
		}
	})
}
