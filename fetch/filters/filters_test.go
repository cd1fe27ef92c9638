package filters

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/filter"
	"github.com/artifactfs/artifactfs/git/object"
)

// A takeover continues the record of unconverted files; another mount keeps sizes only if the settings are the same and
// every file was converted.
func TestFiltersRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "unfiltered")
	open := func(digest string, takeOver bool) (*Filters, bool) {
		t.Helper()
		f, same, err := Open(filter.New(filter.Options{Log: zap.NewNop()}), "s", digest, path, takeOver, zap.NewNop())
		if err == nil {
			err = f.Begin()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		return f, same
	}
	a, b := object.EmptyTree(object.SHA1), object.EmptyTree(object.SHA256)
	f, same := open("1", false)
	if same {
		t.Error("a first mount knows sizes")
	}
	f.Close()
	if f, same = open("1", false); !same {
		t.Error("sizes are not kept with the same settings")
	}
	owner := f.Owner()
	f.MarkUnfiltered(a)
	f.MarkUnfiltered(a)
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
	if !f.Left(a) || f.Left(b) || f.Owner() != owner {
		t.Errorf("after a takeover: got %v, owner %q", f.unfiltered, f.Owner())
	}
	f.MarkUnfiltered(b)
	f.Close()
	if f, same = open("1", false); same || f.Left(a) || f.Left(b) {
		t.Errorf("the next mount does not convert again: %v, %v", same, f.unfiltered)
	}
	f.Close()
	if _, same = open("2", false); same {
		t.Error("sizes are kept with other settings")
	}
}

func FuzzParseUnfiltered(f *testing.F) {
	f.Add(object.EmptyTree(object.SHA256).String() + "\n" + object.EmptyTree(object.SHA1).String()[:7])
	f.Fuzz(func(t *testing.T, lines string) {
		for id := range parseUnfiltered(lines) {
			if id.IsZero() {
				t.Error("the zero id is in the result")
			}
		}
	})
}
