package fetch

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/filter"
	"github.com/artifactfs/artifactfs/git/object"
)

// A takeover continues the record of unconverted files; another mount keeps sizes only if the settings are the same and every file
// was converted.
func TestFiltersRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "unfiltered")
	open := func(digest string, takeOver bool) (*Filters, bool) {
		t.Helper()
		f, same, err := OpenFilters(filter.New(filter.Options{Log: zap.NewNop()}), "s", digest, path, takeOver, zap.NewNop())
		if err == nil {
			err = f.Begin()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		return f, same
	}
	a, b := cacheKey("a"), cacheKey("b")
	f, same := open("1", false)
	if same {
		t.Error("a first mount knows sizes")
	}
	f.Close()
	if f, same = open("1", false); !same {
		t.Error("sizes are not kept with the same settings")
	}
	owner := f.owner
	f.markUnfiltered(a)
	f.markUnfiltered(a)
	f.Close()
	// The predecessor was killed in the middle of a line.
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = file.WriteString(b.String()[:10])
		file.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	f, _ = open("2", true) // the settings were changed before the takeover
	if !f.left(a) || f.left(b) || f.owner != owner {
		t.Errorf("after a takeover: got %v, owner %q", f.unfiltered, f.owner)
	}
	f.markUnfiltered(b)
	f.Close()
	if f, same = open("1", false); same || f.left(a) || f.left(b) {
		t.Errorf("the next mount does not convert again: %v, %v", same, f.unfiltered)
	}
	f.Close()
	if _, same = open("2", false); same {
		t.Error("sizes are kept with other settings")
	}
}

func FuzzParseUnfiltered(f *testing.F) {
	f.Add(cacheKey("a").String() + "\n" + cacheKey("b").String()[:7])
	f.Fuzz(func(t *testing.T, lines string) {
		for id := range parseUnfiltered(lines) {
			if id.IsZero() {
				t.Error("the zero id is in the result")
			}
		}
	})
}

// The keys of a driver's results contain the mount and its settings. Only git-lfs with the same settings has a common key.
func TestResultsOf(t *testing.T) {
	view := func(owner string) *View {
		return &View{conversions: &conversions{filters: &Filters{owner: owner}}}
	}
	rule := func(d convert.Driver, line string) convert.Rule {
		d.Name = "x"
		s := convert.Settings{Drivers: map[string]convert.Driver{"x": d}}
		return convert.Decide(s, []*convert.File{s.Parse([]byte(line), true)}, "p")
	}
	id := object.MustID("0123456789012345678901234567890123456789")
	crlf, process := rule(convert.Driver{}, "* eol=crlf"), rule(convert.Driver{Process: "x"}, "* filter=x")
	lfs, otherLFS := rule(convert.Driver{Process: "x", Shared: "1"}, "* filter=x"), rule(convert.Driver{Process: "x", Shared: "2"}, "* filter=x")
	smudge := rule(convert.Driver{Smudge: "x"}, "* filter=x")
	if view("1").resultsOf(id, crlf, "a") != view("2").resultsOf(id, crlf, "b") {
		t.Error("the result of a conversion without a driver belongs to a mount")
	}
	one := view("1").resultsOf(id, process, "a")
	if one == view("2").resultsOf(id, process, "a") || one == view("1").resultsOf(id, process, "b") || !one.shared.IsZero() {
		t.Error("the result of a driver is used for another mount or another path")
	}
	if view("1").resultsOf(id, smudge, "a") != view("1").resultsOf(id, smudge, "b") {
		t.Error("a driver that does not get the path runs for each path")
	}
	if view("1").resultsOf(id, lfs, "a").shared != view("2").resultsOf(id, lfs, "b").shared {
		t.Error("contents of git-lfs are not shared")
	}
	if view("1").resultsOf(id, lfs, "a").shared == view("1").resultsOf(id, otherLFS, "a").shared || !view("1").resultsOf(id, lfs.Private(), "a").shared.IsZero() {
		t.Error("contents of git-lfs are shared with other settings")
	}
}
