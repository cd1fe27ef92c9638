package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/host/statedir/statedirtest"
)

// Examine reports leftovers of shares and removes them, and keeps all shares.
func TestExamineShares(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	var dirs []string
	for range 3 {
		id, release, err := h.NewShare(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, filepath.Join(statedir.SharesDir(h.State), id))
		if err := os.WriteFile(filepath.Join(dirs[len(dirs)-1], "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		release()
	}
	left := filepath.Join(filepath.Dir(dirs[2]), statedir.RemovedPrefix+"1-"+filepath.Base(dirs[2]))
	err := os.Rename(dirs[2], left)
	if err == nil {
		err = os.WriteFile(filepath.Join(h.Dir(), "work", "overlay", "shares"),
			[]byte("share "+filepath.Base(dirs[0])+"\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, repair := range []bool{false, true} {
		findings, err := Examine(t.Context(), h.State, repair, false)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]Finding{}
		for _, f := range findings {
			all[f.Object] = f
		}
		if f := all[left]; !f.Wrong || f.Mended != repair {
			t.Errorf("repair %v: leftover: got %+v", repair, f)
		}
		used, unused := all["shares/"+filepath.Base(dirs[0])].What, "1 shares are not used"
		if repair { // the log does not name the share, so the repair has removed it from the list
			unused = "2 shares are not used"
		}
		if strings.Contains(used, "used by 1 ") == repair {
			t.Errorf("repair %v: share in use: got %q", repair, used)
		}
		if f := all[statedir.SharesDir(h.State)]; f.Wrong || !strings.Contains(f.What, unused) {
			t.Errorf("repair %v: unused share: got %+v", repair, f)
		}
	}
	if entries, err := os.ReadDir(statedir.SharesDir(h.State)); err != nil || len(entries) != 2 {
		t.Errorf("shares after the repair: got %v, %v", entries, err)
	}
}
