package transport

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestLocalNeedsNoPermission checks that a local repository serves filters and sizes without any configuration, even if
// it belongs to another user.
func TestLocalNeedsNoPermission(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's a repo")
	fx := makeRepo(t, dir, object.SHA1)
	git(t, dir, "", "config", "uploadpack.allowFilter", "false")
	if os.Geteuid() == 0 {
		if out, err := exec.Command("chown", "-R", "12345", dir).CombinedOutput(); err != nil {
			t.Fatalf("chown: %s", out)
		}
	}
	r := openRemote(t, dir, Options{})
	if c, err := r.Capabilities(t.Context()); err != nil || !c.Filter || !c.ObjectInfo {
		t.Fatalf("Capabilities = %+v, %v", c, err)
	}
	res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.head}, Filter: "blob:none"})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(unpack(t, fx.format, res.Pack)); n != 6 {
		t.Errorf("two commits without blobs: got %d objects, want 6", n)
	}
}

func TestUploadPackOption(t *testing.T) {
	fx := makeRepo(t, filepath.Join(t.TempDir(), "r"), object.SHA1)
	mark := filepath.Join(t.TempDir(), "mark")
	r := openRemote(t, fx.dir, Options{UploadPack: "touch " + mark + "; git upload-pack"})
	if _, err := r.Refs(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("the given command did not run: %v", err)
	}
	if _, err := openRemote(t, fx.dir, Options{UploadPack: "echo secret >&2; false"}).Refs(t.Context(),
		nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("upload-pack that fails: got %v", err)
	}
}

func TestSSHRefused(t *testing.T) {
	base := serveSSH(t)
	good := os.Getenv("GIT_SSH_COMMAND")
	key := filepath.Join(t.TempDir(), "other")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	i := strings.Index(good, " -i ") + 4
	j := i + strings.IndexByte(good[i:], ' ')
	t.Setenv("GIT_SSH_COMMAND", good[:i]+key+good[j:])
	if _, err := openRemote(t, base+"/r", Options{Retries: 2}).Refs(t.Context(), nil); !errors.Is(err, ErrAuth) {
		t.Errorf("ssh with the wrong key: got %v", err)
	}
	t.Setenv("GIT_SSH_COMMAND", good)
	if _, err := openRemote(t, base+"/r", Options{UploadPack: "no-such-command"}).Refs(t.Context(), nil); !errors.Is(err,
		ErrNotFound) {
		t.Errorf("ssh to a host without upload-pack: got %v", err)
	}
	// A server that does not accept GIT_PROTOCOL answers with version 0.
	root := t.TempDir()
	makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	t.Setenv("GIT_SSH_VARIANT", "simple")
	port := base[strings.LastIndexByte(base, ':')+1:]
	t.Setenv("GIT_SSH_COMMAND", good+" -p "+port)
	if _, err := openRemote(t, "127.0.0.1:"+root+"/r", Options{}).Refs(t.Context(), nil); !errors.Is(err, ErrNoV2) {
		t.Errorf("protocol version 0 over ssh: got %v", err)
	}
}

// TestPushToPartialClone checks that a partial clone accepts a push of a ref to objects of its promisor. With a side
// band, git's receive-pack would hang there.
func TestPushToPartialClone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	fx := makeRepo(t, dir, object.SHA1)
	clone := filepath.Join(t.TempDir(), "c.git")
	git(t, dir, "", "config", "uploadpack.allowFilter", "true")
	git(t, dir, "", "clone", "-q", "--bare", "--filter=blob:none", "file://"+dir, clone)
	results, err := push(t, openRemote(t, clone, Options{}),
		PushRequest{Updates: []RefUpdate{{Name: "refs/heads/new", New: fx.head}}})
	wantKinds(t, results, err, done)
	if got := refOf(t, clone, "refs/heads/new"); got != fx.head.String() {
		t.Errorf("ref after the push: got %q", got)
	}
}
