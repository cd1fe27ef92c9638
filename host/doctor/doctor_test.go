package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/host/statedir/statedirtest"
)

func TestExamine(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "sound", 2, true)
	statedirtest.Add(t, h, "killed", 1, false)
	statedirtest.Add(t, h, "empty", 0, false)
	statedirtest.Add(t, h, "newer", 1, true)
	if err := os.WriteFile(filepath.Join(h.Dir(), "newer", statedir.RecordName), []byte(`{"version":99}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(h.Dir(), "_left"), 0o700); err != nil {
		t.Fatal(err)
	}
	mounted, err := h.Lock(t.Context(), "mounted", "/srv/mounted")
	if err != nil {
		t.Fatal(err)
	}
	defer mounted.Unlock()
	look := func(repair bool) map[string]Finding {
		t.Helper()
		findings, err := Examine(t.Context(), h.State, repair, true)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]Finding{}
		for _, f := range findings {
			all[filepath.Base(f.Object)] = f
		}
		return all
	}
	before := statedirtest.Names(t, h)
	for _, repair := range []bool{false, true} {
		all := look(repair)
		for name, want := range map[string]struct {
			wrong, mended bool
			what          string
		}{
			"sound": {false, false, "2 changed paths"}, "killed": {false, false, "1 changed path"},
			"mounted": {false, false, "not checked"},
			"newer":   {true, false, "newer"}, "empty": {true, repair, "without any changes"},
			"_left": {true, repair, "leftover of a process that was killed while it mounted"},
		} {
			if f := all[name]; f.Wrong != want.wrong || f.Mended != want.mended || !strings.Contains(f.What, want.what) {
				t.Errorf("repair %v: finding %s: got %+v", repair, name, f)
			}
		}
		if names := statedirtest.Names(t, h); !repair && names != before {
			t.Errorf("doctor without repair left the files %q", names)
		}
	}
	if names := statedirtest.Names(t, h); names != "killed mounted newer sound" {
		t.Errorf("files after the repair: got %q", names)
	}
}

// TestExamineMendsAnOverlay checks that Examine reports a damaged log and repairs it without losing records that can be
// read.
func TestExamineMendsAnOverlay(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 8, true)
	log := filepath.Join(h.Dir(), "work", "overlay", "log")
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	at := 4096 + (len(strings.TrimRight(string(text), "\x00"))-4096)/2 // behind the header
	for i := range 16 {
		text[at+i] ^= 0xff
	}
	if err := os.WriteFile(log, text, 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := func(repair bool) (open, mended int) {
		t.Helper()
		findings, err := Examine(t.Context(), h.State, repair, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			if f.Object == "work" && f.Wrong {
				t.Logf("repair %v: %+v", repair, f)
				if f.Mended {
					mended++
				} else {
					open++
				}
			}
		}
		return open, mended
	}
	if open, _ := wrong(false); open == 0 {
		t.Error("the damage is not reported")
	}
	if _, mended := wrong(true); mended == 0 {
		t.Error("the damage was not repaired")
	}
	if open, _ := wrong(false); open > 0 {
		t.Error("the overlay is still damaged after the repair")
	}
}

func TestGitVersions(t *testing.T) {
	for text, want := range map[string][3]int{
		"2.39.5": {2, 39, 1}, "2.55.GIT": {2, 55, 1}, "2.50.1 (Apple Git-155)": {2, 50, 1}, "3.0": {3, 0, 1}, "": {},
		"x.y": {}, "2": {},
	} {
		major, minor, ok := gitVersion(text)
		if got := [3]int{major, minor, 0}; ok != (want[2] == 1) || ok && (got[0] != want[0] || got[1] != want[1]) {
			t.Errorf("gitVersion(%q) = %d.%d, %v", text, major, minor, ok)
		}
	}
}

func TestFuseConf(t *testing.T) {
	for conf, want := range map[string]bool{
		"": false, "user_allow_other": true, "# user_allow_other\n": false, "mount_max = 9\n  user_allow_other # yes\n": true,
		"user_allow_others\n": false,
	} {
		if got := allowsOther(conf); got != want {
			t.Errorf("allowsOther(%q) = %v", conf, got)
		}
	}
}
