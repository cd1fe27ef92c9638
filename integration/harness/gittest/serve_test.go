package gittest

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// body returns the body of a request in protocol v2.
func body(f object.Format, command string, lines ...string) []byte {
	b := appendPacket(nil, []byte("command="+command+"\n"))
	b = appendPacket(b, []byte("object-format="+f.String()))
	b = append(b, "0001"...)
	for _, l := range lines {
		b = appendPacket(b, []byte(l+"\n"))
	}
	return append(b, "0000"...)
}

func fetchBody(f object.Format, wants ...object.ID) []byte {
	lines := []string{"ofs-delta", "no-progress"}
	for _, id := range wants {
		lines = append(lines, "want "+id.String())
	}
	return body(f, "fetch", append(lines, "done")...)
}

// post sends a request to git-upload-pack and returns the response, whose body the caller must close.
func post(t testing.TB, client *http.Client, url string, b io.Reader, header ...string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/git-upload-pack", b)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	req.Header.Set("Git-Protocol", "version=2")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return client.Do(req)
}

// read sends a request to git-upload-pack and returns the status and the body of the response.
func read(t testing.TB, url string, b io.Reader, header ...string) (int, []byte, error) {
	t.Helper()
	resp, err := post(t, http.DefaultClient, url, b, header...)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return resp.StatusCode, got, err
}

func forFormats(t *testing.T, f func(t *testing.T, format object.Format)) {
	for _, format := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(format.String(), func(t *testing.T) { f(t, format) })
	}
}

func TestConfiguration(t *testing.T) {
	caps := func(sv *served) string {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, sv.url()+"/info/refs?service=git-upload-pack", nil)
		req.Header.Set("Git-Protocol", "version=2")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	has := func(what, caps string, filter, refs bool) {
		t.Helper()
		if strings.Contains(caps, "filter") != filter || strings.Contains(caps, "ref-in-want") != refs {
			t.Errorf("%s: filter should be %v and ref-in-want %v in %q", what, filter, refs, caps)
		}
	}
	sv := start(t, ServerOptions{})
	has("as it is", caps(sv), true, false)
	gitIn(t, sv.dir, "config", "uploadpack.allowFilter", "false")
	gitIn(t, sv.dir, "config", "uploadpack.allowRefInWant", "true")
	has("the repository's own", caps(sv), false, true)
	over := start(t, ServerOptions{Config: []string{"uploadpack.allowFilter=true", "uploadpack.allowRefInWant=false"}})
	gitIn(t, over.dir, "config", "uploadpack.allowFilter", "false")
	gitIn(t, over.dir, "config", "uploadpack.allowRefInWant", "true")
	has("over the repository's", caps(over), true, false)
	sized := start(t, ServerOptions{Config: []string{"transfer.advertiseObjectInfo=true"}})
	// git 2.39 always announces object-info; later versions announce it if the configuration allows it
	if got := caps(sized); !strings.Contains(got, "object-info") {
		t.Errorf("no object-info in %q", got)
	}
}

// TestServesRepositoriesFromElsewhere serves a repository that is behind a symbolic link, belongs to another user, and
// cannot be written to.
func TestServesRepositoriesFromElsewhere(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "b.git")
	head := makeRepo(t, elsewhere, object.SHA1)
	err := filepath.WalkDir(elsewhere, func(path string, d os.DirEntry, err error) error {
		if err == nil && os.Getuid() == 0 {
			err = os.Lchown(path, 12345, 12345)
		}
		if err == nil && !d.IsDir() {
			err = os.Chmod(path, 0o444)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sv := start(t, ServerOptions{})
	deep := filepath.Join(sv.root, "group", "sub")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(deep, "b.git")); err != nil {
		t.Fatal(err)
	}
	repos, err := sv.Repos()
	if err != nil || !slices.Equal(repos, []string{"a.git", "group/sub/b.git"}) {
		t.Errorf("repositories are %v, %v", repos, err)
	}
	url := sv.URL(filepath.Join(deep, "b.git"))
	if url != sv.URL("group/sub/b.git") {
		t.Errorf("URL is %s by path, %s by name", url, sv.URL("group/sub/b.git"))
	}
	sv.Log().Reset()
	dir := filepath.Join(t.TempDir(), "c")
	gitIn(t, "", "clone", "-q", url, dir)
	if got := gitIn(t, dir, "rev-parse", "HEAD"); got != head.String() {
		t.Errorf("cloned %s, want %s", got, head)
	}
	sent, _ := sv.Log().Blobs()
	sameBlobs(t, "elsewhere", sent, blobsIn(t, elsewhere))
	if _, err := Git(t.Context(), dir, "push", "-q", "origin", "HEAD:refs/heads/new"); err == nil {
		t.Error("a push to a server without Push succeeded")
	}
}

func TestPushWhereTheRepositoryAllowsIt(t *testing.T) {
	sv := start(t, ServerOptions{Config: []string{"http.receivepack=true"}})
	work := filepath.Join(t.TempDir(), "w")
	gitIn(t, "", "clone", "-q", sv.url(), work)
	// larger than http.postBuffer, so the request is sent in chunks
	if err := os.WriteFile(filepath.Join(work, "big"), noise(3<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	gitIn(t, work, "add", "big")
	gitIn(t, work, "commit", "-q", "-m", "c")
	sv.Log().Reset()
	gitIn(t, work, "push", "-q", "origin", "HEAD:refs/heads/new")
	if got := gitIn(t, sv.dir, "rev-parse", "new"); got != gitIn(t, work, "rev-parse", "HEAD") {
		t.Errorf("pushed, but the branch is at %s", got)
	}
	var in int64
	for _, r := range sv.Log().Requests() {
		if r.Command != Push {
			t.Errorf("logged as %v", r)
		}
		in += r.BytesIn
	}
	if in < 3<<20 {
		t.Errorf("%d bytes in, the file alone has more", in)
	}
}

// TestPushWithWarnings checks a push during which git sends messages before it has read the whole pack.
func TestPushWithWarnings(t *testing.T) {
	sv := start(t,
		ServerOptions{Config: []string{"http.receivepack=true", "receive.fsckObjects=true", "receive.unpackLimit=1"},
			Bandwidth: 4 << 20})
	work := t.TempDir()
	gitIn(t, work, "init", "-q", "-b", "main")
	write := func(kind string, data []byte) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "object")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return gitIn(t, work, "hash-object", "-t", kind, "--literally", "-w", path)
	}
	blob, err := hex.DecodeString(write("blob", noise(4<<20)))
	if err != nil {
		t.Fatal(err)
	}
	tree := write("tree", append([]byte("100664 file\x00"), blob...)) // a file mode that only old versions of git wrote
	commit := gitIn(t, work, "commit-tree", "-m", "commit", tree)
	gitIn(t, work, "push", "-q", sv.url(), commit+":refs/heads/warned")
	if got := gitIn(t, work, "ls-remote", sv.url(), "refs/heads/warned"); !strings.HasPrefix(got, commit) {
		t.Errorf("refs after a push with warnings: %q, want %s", got, commit)
	}
}

// bigRepo creates a repository with one blob of n bytes that cannot be compressed.
func bigRepo(t *testing.T, root string, n int) object.ID {
	t.Helper()
	dir := filepath.Join(root, "big.git")
	gitIn(t, "", "init", "-q", "--bare", "-b", "main", dir)
	head :=
		fmt.Sprintf("commit refs/heads/main\ncommitter a <a@b> 1600000000 +0000\ndata 0\nM 100644 inline big\ndata %d\n", n)
	if _, err := run(t.Context(), dir, io.MultiReader(strings.NewReader(head), bytes.NewReader(noise(n))), nil, "-c",
		"core.compression=0", "fast-import", "--quiet"); err != nil {
		t.Fatal(err)
	}
	return object.MustID(gitIn(t, dir, "rev-parse", "main:big"))
}

func TestLargeAnswersStream(t *testing.T) {
	const size = 64 << 20
	sv := start(t, ServerOptions{})
	id := bigRepo(t, sv.root, size)
	cheap, err := Serve(ServerOptions{Root: sv.root, Cheap: true})
	if err != nil {
		t.Fatal(err)
	}
	defer cheap.Close()
	for _, c := range []struct {
		name  string
		s     *Server
		blobs int
	}{{"exact", sv.Server, 1}, {"cheap", cheap, Uncounted}} {
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		resp, err := post(t, http.DefaultClient, c.s.URL("big.git"), bytes.NewReader(fetchBody(object.SHA1, id)))
		if err != nil {
			t.Fatal(err)
		}
		var peak uint64
		var n int64
		buf := make([]byte, 1<<20)
		for step := 0; ; step++ {
			m, err := io.ReadFull(resp.Body, buf)
			n += int64(m)
			if step%8 == 0 {
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapAlloc)
			}
			if err != nil {
				break
			}
		}
		resp.Body.Close()
		r := c.s.Log().Fetches()
		if last := r[len(r)-1]; n < size || last.BytesOut != n || last.Objects != 1 || last.Blobs != c.blobs ||
			last.PackErr != "" {
			t.Errorf("%s: %d bytes came, logged as %v", c.name, n, last)
		}
		if limit := before.HeapAlloc + 48<<20; peak > limit {
			t.Errorf("%s: heap grew from %d to %d MiB under an answer of %d MiB", c.name, before.HeapAlloc>>20,
				peak>>20, size>>20)
		}
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	root := t.TempDir()
	id := bigRepo(t, root, 8<<20)
	s, err := Serve(ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	open := func() *http.Response {
		resp, err := post(t, &http.Client{Transport: &http.Transport{}}, s.URL("big.git"),
			bytes.NewReader(fetchBody(object.SHA1, id)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		return resp
	}
	stall := s.Inject(Fault{Kind: Stall, After: 1 << 20})
	resp := open()
	if len(familyOf(s.home)) == 0 {
		t.Fatal("a stalled answer has no process: this test sees nothing")
	}
	resp.Body.Close()
	await.Until(t, "no process after the client has left", func() bool { return len(familyOf(s.home)) == 0 })
	for range 3 {
		defer open().Body.Close()
	}
	home := s.home
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	await.Until(t, "no process after Close", func() bool { return len(familyOf(home)) == 0 })
	if _, err := os.Stat(home); !os.IsNotExist(err) {
		t.Errorf("the server's directory is still there: %v", err)
	}
	if stall.Hits() != 4 {
		t.Errorf("stalled %d answers, want 4", stall.Hits())
	}
}

func TestServeRefusesWhatIsNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{file, file + ".missing"} {
		if s, err := Serve(ServerOptions{Root: root}); err == nil {
			s.Close()
			t.Errorf("served %s", root)
		}
	}
}
