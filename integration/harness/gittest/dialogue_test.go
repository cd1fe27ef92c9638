package gittest

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// requestFields returns the fields of the logged requests that do not depend on the transport.
func requestFields(s *Server) (list []string) {
	for _, r := range s.Log().Requests() {
		wants := slices.SortedFunc(slices.Values(r.Wants), object.ID.Compare)
		wants = slices.Compact(wants) // before v2, except over HTTP, git requests an object twice if two refs name it
		list = append(list, fmt.Sprintf("%s v%d wants %v prefixes %d filter %q depth %d: %d objects, %d blobs %s",
			r.Command, r.Version, wants, len(r.Prefixes), r.Filter, r.Depth, r.Objects, r.Blobs, r.PackErr))
	}
	return list
}

// TestDialoguesTellWhatHTTPDoes compares the logs of the other servers with that of the HTTP server for the same
// commands. Other tests compare the log of the HTTP server with git.
func TestDialoguesTellWhatHTTPDoes(t *testing.T) {
	for _, version := range []string{"2", "0"} {
		t.Run("v"+version, func(t *testing.T) { testDialogues(t, version) })
	}
}

func testDialogues(t *testing.T, version string) {
	script := func(git inetdClient, url string) error {
		dir := filepath.Join(t.TempDir(), "clone")
		for _, args := range [][]string{
			{"clone", "--quiet", "--no-checkout", "--filter=blob:none", url, dir},
			{"-C", dir, "checkout", "--quiet"},
			{"clone", "--quiet", "--bare", "--depth=1", url, dir + ".bare"},
			{"ls-remote", "--quiet", url, "refs/heads/*"},
		} {
			if version != "2" && (slices.Contains(args, "ls-remote") || slices.Contains(args, "--depth=1")) {
				// before v2, the refs are sent with the capabilities, and a shallow fetch over HTTP needs one more
				// request
				continue
			}
			if _, err := git(t.Context(), append([]string{"-c", "protocol.version=" + version}, args...)...); err != nil {
				return err
			}
		}
		return nil
	}
	var want []string
	forEachInetd(t, ServerOptions{}, func(t *testing.T, s *Server, r *Repo, git inetdClient) {
		if want == nil {
			web, err := Serve(ServerOptions{Root: filepath.Dir(r.Path)})
			if err != nil {
				t.Fatal(err)
			}
			defer web.Close()
			plain := func(ctx context.Context, args ...string) (string, error) { return client(ctx, nil, args...) }
			if err := script(plain, web.URL("outside.git")); err != nil {
				t.Fatal(err)
			}
			want = requestFields(web)
		}
		if err := script(git, s.URL("a b.git")); err != nil {
			t.Fatal(err)
		}
		got := requestFields(s)
		if !slices.Equal(got, want) {
			t.Errorf("log says\n%q\nwant\n%q", got, want)
		}
		var in, out int64
		for _, r := range s.Log().Requests() {
			if r.Repo != "a b.git" || r.Conn == 0 {
				t.Errorf("a request for %q on connection %d", r.Repo, r.Conn)
			}
			in, out = in+r.BytesIn, out+r.BytesOut
		}
		if in < 5000 || out < 20_000 {
			t.Errorf("%d bytes in, %d out", in, out)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if again := requestFields(s); !slices.Equal(again, got) {
			t.Errorf("closed, the log says\n%q\nwhich was\n%q", again, got)
		}
		s.Log().Reset()
		if left := requestFields(s); len(left) != 0 {
			t.Errorf("reset, the log says\n%q", left)
		}
	})
}

func TestDialogueCutShort(t *testing.T) {
	// This is tested for git:// only, because the log of ssh is made from a recording of all bytes that git has sent.
	root := t.TempDir()
	r, err := New(filepath.Join(root, "r.git"), RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Commit("main", map[string]File{"noise": {Data: noise(1 << 20)}}, "large"); err != nil {
		t.Fatal(err)
	}
	s, err := ServeGitDaemon(ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Inject(Fault{Kind: Cut, After: 300_000})
	if _, err := client(t.Context(), nil, "clone", "--quiet", "--bare", s.URL("r.git"),
		filepath.Join(t.TempDir(), "c")); err == nil {
		t.Error("a clone cut short succeeded")
	}
	await.Until(t, "the connection is over",
		func() bool { return !serving(s) && len(s.Log().Fetches()) == 1 && s.Log().Fetches()[0].PackErr != "" })
	var out int64
	for _, r := range s.Log().Requests() {
		out += r.BytesOut
	}
	if f := s.Log().Fetches()[0]; out != 300_000 || f.Blobs != 0 || f.At.IsZero() || f.Duration < f.FirstByte ||
		f.Duration > time.Minute {
		t.Errorf("%d bytes out, fetch: %v", out, f)
	}
}

func FuzzDialogue(f *testing.F) {
	line := func(s string) []byte { return appendPacket(nil, []byte(s)) }
	preface := line("git-upload-pack /r.git\x00host=127.0.0.1\x00\x00version=2\x00")
	fetch := slices.Concat(line("command=fetch"), []byte("0001"),
		line("want "+"0123456789012345678901234567890123456789\n"), line("done\n"), []byte("0000"))
	pack := slices.Concat(line("version 2\n"), []byte("0000"), line("packfile\n"),
		line("\x01PACK\x00\x00\x00\x02\x00\x00\x00\x05"), []byte("0000"))
	f.Add(slices.Concat(preface, fetch, fetch, []byte("0000")), pack)
	f.Add(slices.Concat(line("git-upload-pack /r.git\x00host=h\x00"), fetch, line("have 1")), pack)
	f.Add(slices.Concat(line("git-receive-pack r.git"), fetch, []byte("PACK")), pack)
	f.Add([]byte("0000"), []byte("0004PACK"))
	f.Add([]byte("000X0000"), []byte("0"))
	f.Fuzz(func(t *testing.T, up, down []byte) {
		hear := func(step int) *Log {
			s := &Server{root: "/nonexistent", cheap: true, log: newLog(nil)}
			d := newDialogue(s, 1, false)
			for p := range slices.Chunk(up, step) {
				d.fromClient(p)
			}
			for p := range slices.Chunk(down, step) {
				d.fromServer(p)
			}
			d.end()
			s.wg.Wait()
			return s.Log()
		}
		whole := hear(1 << 20)
		out := int64(0)
		for _, r := range whole.Requests() {
			out += r.BytesOut
		}
		if out > int64(len(down)) {
			t.Errorf("%d bytes out of %d", out, len(down))
		}
		// The result must not depend on how the stream is divided, unless it contains bytes that are not packets.
		if bytewise := hear(1); bytewise.String() != whole.String() && !bytes.Contains(append(up, down...), []byte("PACK")) {
			t.Errorf("in one piece:\n%s\nbytewise:\n%s", whole, bytewise)
		}
	})
}
