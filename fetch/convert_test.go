package fetch

import (
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/filters"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
)

// The keys of a driver's results contain the mount and its settings. Only git-lfs with the same settings has a common
// key.
func TestResultsOf(t *testing.T) {
	view := func(owner string) *View {
		f, _, err := filters.Open(nil, owner, "", filepath.Join(t.TempDir(), "unfiltered"), false, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		return &View{conversions: &conversions{filters: f}}
	}
	rule := func(d convert.Driver, line string) convert.Rule {
		d.Name = "x"
		s := convert.Settings{Drivers: map[string]convert.Driver{"x": d}}
		return convert.Decide(s, []*convert.File{s.Parse([]byte(line), true)}, "p")
	}
	id := object.MustID("0123456789012345678901234567890123456789")
	crlf, process := rule(convert.Driver{}, "* eol=crlf"), rule(convert.Driver{Process: "x"}, "* filter=x")
	lfs, otherLFS := rule(convert.Driver{Process: "x", Shared: "1"}, "* filter=x"),
		rule(convert.Driver{Process: "x", Shared: "2"}, "* filter=x")
	smudge := rule(convert.Driver{Smudge: "x"}, "* filter=x")
	if view("1").resultsOf(id, crlf, "a") != view("2").resultsOf(id, crlf, "b") {
		t.Error("the result of a conversion without a driver belongs to a mount")
	}
	one := view("1").resultsOf(id, process, "a")
	if one == view("2").resultsOf(id, process, "a") || one == view("1").resultsOf(id, process, "b") ||
		!one.shared.IsZero() {
		t.Error("the result of a driver is used for another mount or another path")
	}
	if view("1").resultsOf(id, smudge, "a") != view("1").resultsOf(id, smudge, "b") {
		t.Error("a driver that does not get the path runs for each path")
	}
	if view("1").resultsOf(id, lfs, "a").shared != view("2").resultsOf(id, lfs, "b").shared {
		t.Error("contents of git-lfs are not shared")
	}
	if view("1").resultsOf(id, lfs, "a").shared == view("1").resultsOf(id, otherLFS, "a").shared ||
		!view("1").resultsOf(id, lfs.Private(), "a").shared.IsZero() {
		t.Error("contents of git-lfs are shared with other settings")
	}
}
