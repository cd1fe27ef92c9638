package dockervolume

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

func TestUsesEndWithTheBoot(t *testing.T) {
	r := records{t.TempDir()}
	rec := record{Name: "v", Options: map[string]string{"remote": "/r"}, Created: time.Unix(1, 0).UTC(), Uses: []string{"one"}}
	if err := r.save(rec); err != nil {
		t.Fatal(err)
	}
	got, ok, err := r.load("v")
	if err != nil || !ok || !reflect.DeepEqual(got.Uses, rec.Uses) || !reflect.DeepEqual(got.Options, rec.Options) {
		t.Errorf("record: got %+v, %v, %v", got, ok, err)
	}
	text, err := os.ReadFile(r.path("v"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.path("v"), []byte(strings.ReplaceAll(string(text), got.Boot, "another")), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err := r.load("v"); err != nil || len(got.Uses) > 0 {
		t.Errorf("uses of an earlier boot: got %v, %v, want none", got.Uses, err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "w.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.list(); err == nil {
		t.Error("a damaged record was listed without an error")
	}
}

func TestVolumeOfOptions(t *testing.T) {
	for _, c := range []struct {
		name, session, wait string
		options             map[string]string
	}{
		{"v", "v", "git", map[string]string{"remote": "/r"}},
		{strings.Repeat("a", 150), strings.Repeat("a", 128), "git", map[string]string{"remote": "/r"}},
		{"v", "", "tree", map[string]string{"remote": "/r", "readOnly": "true", "wait": "tree"}},
		{"v", "work-v-h", "git", map[string]string{"remote": "/r", "session": "work-{volume}-{node}"}},
	} {
		rec := record{Name: c.name, Options: c.options}
		v, err := rec.volume("h")
		if err != nil || v.Request.Session != c.session || string(v.Request.Wait) != c.wait || v.Request.GitDir != control.GitDirInside {
			t.Errorf("volume %s with %v: got %+v, %v", c.name, c.options, v.Request, err)
		}
		if _, set := c.options["wait"]; !set && len(rec.Options) != len(c.options) {
			t.Errorf("options of %s were changed", c.name)
		}
	}
	if _, err := (&record{Name: "v"}).volume("h"); err == nil {
		t.Error("a volume without a remote was accepted")
	}
}

func TestSecondDriverIsRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(socket); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("second driver at the same socket: got %v", err)
	}
	// A socket whose process was killed is replaced.
	l.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false)
	l.Close()
	again, err := listen(socket)
	if err != nil {
		t.Fatalf("socket of a killed process: %v", err)
	}
	again.Close()
}
