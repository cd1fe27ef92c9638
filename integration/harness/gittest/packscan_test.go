package gittest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// packObjects returns a pack, made by stock git, of the objects that rev-list prints for revs.
func packObjects(t testing.TB, dir, revs string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("git", append([]string{"pack-objects", "--stdout", "-q", "--revs"}, args...)...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, Env(), strings.NewReader(revs)
	pack, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return pack
}

// only implements bases with a map of blobs.
type only map[object.ID][]byte

func (o only) object(id object.ID) (object.Type, []byte, error) {
	if b, ok := o[id]; ok {
		return object.Blob, b, nil
	}
	return 0, nil, errors.New("no such base")
}

func TestCountPack(t *testing.T) {
	forFormats(t, func(t *testing.T, format object.Format) {
		dir := filepath.Join(t.TempDir(), "r.git")
		makeRepo(t, dir, format)
		all := blobsIn(t, dir)
		objects := strings.Count(gitIn(t, dir, "cat-file", "--batch-all-objects", "--batch-check"), "\n") + 1
		var group group
		for name, pack := range map[string][]byte{
			"offset deltas":    packObjects(t, dir, "main\n", "--delta-base-offset", "--window=50", "--depth=4000"),
			"reference deltas": packObjects(t, dir, "main\n"),
			"no deltas":        packObjects(t, dir, "main\n", "--depth=0", "--no-reuse-delta"),
		} {
			repo := &catFile{dir: dir, group: &group}
			c := countPack(format, bytes.NewReader(pack), int64(len(pack)), repo)
			repo.close()
			got := map[object.ID]int{}
			for _, id := range c.blobs {
				got[id]++
			}
			if c.err != nil || c.objects != objects || !maps.Equal(got, all) {
				t.Errorf("%s: %d of %d objects, %d of %d blobs, %v", name, c.objects, objects, len(got), len(all), c.err)
			}
			for _, n := range []int{0, 5, 12, 13, 40, len(pack) / 2, len(pack) - format.Size() - 1} {
				repo := &catFile{dir: dir, group: &group}
				c := countPack(format, bytes.NewReader(pack[:n]), int64(n), repo)
				repo.close()
				if c.err == nil || c.objects >= objects {
					t.Errorf("%s cut to %d bytes: %d objects, no error", name, n, c.objects)
				}
			}
		}
	})
}

func TestApplyDelta(t *testing.T) {
	base := []byte("0123456789")
	for _, c := range []struct {
		name, delta, want string
		ok                bool
	}{
		{"insert", "\x0a\x03\x03abc", "abc", true},
		{"copy", "\x0a\x04\x91\x02\x04", "2345", true},
		{"copy from the start", "\x0a\x02\x90\x02", "01", true},
		{"both", "\x0a\x03\x90\x02\x01x", "01x", true},
		{"empty", "\x0a\x00", "", true},
		{"another base", "\x0b\x01\x01x", "", false},
		{"copy beyond the base", "\x0a\x04\x91\x08\x04", "", false},
		{"copy of 64 KiB", "\x0a\x80\x80\x04\x80", "", false},
		{"result too short", "\x0a\x04\x01x", "", false},
		{"result too long", "\x0a\x01\x02xy\x90\x02", "", false},
		{"reserved instruction", "\x0a\x01\x00", "", false},
		{"insert cut short", "\x0a\x05\x05ab", "", false},
		{"copy cut short", "\x0a\x05\x91", "", false},
		{"claims a terabyte", "\x0a\x80\x80\x80\x80\x80\x40", "", false},
		{"nothing", "", "", false},
	} {
		got, err := applyDelta(base, []byte(c.delta))
		if (err == nil) != c.ok || string(got) != c.want {
			t.Errorf("%s: got %q (%v), want %q", c.name, got, err, c.want)
		}
	}
}

func FuzzCountPack(f *testing.F) {
	for _, format := range []object.Format{object.SHA1, object.SHA256} {
		dir := filepath.Join(f.TempDir(), "r.git")
		gitIn(f, "", "init", "-q", "--bare", "-b", "main", "--object-format="+format.String(), dir)
		var s strings.Builder
		for n := range 3 {
			data := strings.Repeat("the same line\n", 30) + fmt.Sprint(n)
			fmt.Fprintf(&s,
				"commit refs/heads/main\ncommitter a <a@b> 1600000000 +0000\ndata 0\nM 100644 inline f\ndata %d\n%s\n",
				len(data), data)
		}
		if _, err := run(f.Context(), dir, strings.NewReader(s.String()), nil, "fast-import", "--quiet"); err != nil {
			f.Fatal(err)
		}
		f.Add(packObjects(f, dir, "main\n", "--delta-base-offset"), format == object.SHA256)
		f.Add(packObjects(f, dir, "main\n"), format == object.SHA256)
	}
	f.Add([]byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff"), false)
	f.Fuzz(func(t *testing.T, pack []byte, sha256 bool) {
		format := object.SHA1
		if sha256 {
			format = object.SHA256
		}
		c := countPack(format, bytes.NewReader(pack), int64(len(pack)), only{})
		if len(c.blobs) > c.objects || c.objects > len(pack) {
			t.Errorf("%d blobs of %d objects in %d bytes", len(c.blobs), c.objects, len(pack))
		}
	})
}
