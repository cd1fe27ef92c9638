package statedir_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/host/statedir/statedirtest"
)

func TestRecordIsReadAsItWasWritten(t *testing.T) {
	home := t.TempDir()
	if _, err := statedir.ReadRecord(home); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read a missing record: got %v", err)
	}
	want := statedirtest.Record()
	want.Made = []string{"/srv", "/srv/app"}
	want.Checkpoint.Branch, want.Checkpoint.Head = "refs/heads/next", strings.Repeat("6", 40)
	if err := want.Save(home); err != nil {
		t.Fatal(err)
	}
	for i, v := 0, reflect.ValueOf(want); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Fatalf("field %s is not tested", v.Type().Field(i).Name)
		}
	}
	if got, err := statedir.ReadRecord(home); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read the record: got %+v, %v", got, err)
	}
	if names, err := os.ReadDir(home); err != nil || len(names) != 1 {
		t.Errorf("files after saving: got %v, %v", names, err)
	}
	if err := statedir.SyncRecord(home); err != nil {
		t.Error(err)
	}
}

func TestBadRecords(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *statedir.Record)
		err    error
	}{
		"newer": {func(r *statedir.Record) { r.Version = statedir.RecordVersion + 1; r.Dir = "" },
			statedir.ErrNewer},
		"no version":              {func(r *statedir.Record) { r.Version = 0 }, statedir.ErrRecord},
		"a path for a name":       {func(r *statedir.Record) { r.Session = "../x" }, statedir.ErrRecord},
		"relative directory":      {func(r *statedir.Record) { r.Dir = "srv" }, statedir.ErrRecord},
		"no id":                   {func(r *statedir.Record) { r.Commit = "main" }, statedir.ErrRecord},
		"id of another format":    {func(r *statedir.Record) { r.Tree = strings.Repeat("2", 64) }, statedir.ErrRecord},
		"commit without a tree":   {func(r *statedir.Record) { r.Tree = "" }, statedir.ErrRecord},
		"unknown format":          {func(r *statedir.Record) { r.Format = "md5" }, statedir.ErrRecord},
		"negative":                {func(r *statedir.Record) { r.Changed = -1 }, statedir.ErrRecord},
		"made elsewhere":          {func(r *statedir.Record) { r.Made = []string{"/srv/other"} }, statedir.ErrRecord},
		"redirect leads out":      {func(r *statedir.Record) { r.Redirects[0].Path = "../x" }, statedir.ErrRecord},
		"redirect is everything":  {func(r *statedir.Record) { r.Redirects[0].Backing = "." }, statedir.ErrRecord},
		"backing leads out":       {func(r *statedir.Record) { r.Redirects[0].Backing = ".." }, statedir.ErrRecord},
		"backing of another home": {func(r *statedir.Record) { r.Redirects[0].Backing = "../../b/0" }, statedir.ErrRecord},
	} {
		r := statedirtest.Record()
		c.change(&r)
		if _, err := statedir.DecodeRecord(encodeRecord(t, r)); !errors.Is(err, c.err) {
			t.Errorf("decode a record with %s: got %v", name, err)
		}
	}
	for _, text := range []string{"", "{", "[]", "null", `{"version":"1"}`, `{"version":1}`} {
		if _, err := statedir.DecodeRecord([]byte(text)); !errors.Is(err, statedir.ErrRecord) {
			t.Errorf("decode %q: got %v, want ErrRecord", text, err)
		}
	}
}

// TestHeadOfANewGitDirectory checks which branch or commit a session shows before its git directory exists.
func TestHeadOfANewGitDirectory(t *testing.T) {
	const base, head = "base", "head"
	next := &statedir.Checkpoint{Branch: "refs/heads/next", Head: head}
	detached, old := &statedir.Checkpoint{Head: head}, &statedir.Checkpoint{}
	for name, c := range map[string]struct {
		ref        string
		checkpoint *statedir.Checkpoint
		asked      *control.NewHead
		want       string
	}{
		"a branch":             {"refs/heads/main", nil, nil, "main"},
		"a tag":                {"refs/tags/v1", nil, nil, base},
		"a checkpoint":         {"refs/heads/main", next, nil, "next"},
		"a detached HEAD":      {"refs/heads/main", detached, nil, head},
		"an older version":     {"refs/heads/main", old, nil, "main"},
		"a new branch":         {"refs/heads/main", next, &control.NewHead{Branch: "x"}, "x"},
		"a fork that detaches": {"refs/heads/main", next, &control.NewHead{Detach: true}, head},
	} {
		r := statedir.Record{Ref: c.ref, Commit: base, Checkpoint: c.checkpoint, Fork: statedir.Fork{Head: c.asked}}
		if got := r.FirstHead(); got != c.want {
			t.Errorf("HEAD of a session that started from %s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestBaseOfARecord(t *testing.T) {
	r := statedirtest.Record()
	b, err := r.Base()
	if err != nil || b.Commit.String() != r.Commit || b.Tree.String() != r.Tree || b.Ref != r.Ref ||
		!b.Time.Equal(r.Time) {
		t.Errorf("base of the record: got %+v, %v", b, err)
	}
	r.Commit, r.Tree, r.Format, r.Checkpoint = "", "", "sha256", nil
	if b, err := r.Base(); err != nil || !b.Commit.IsZero() || b.Format.String() != "sha256" {
		t.Errorf("base of an unborn branch: got %+v, %v", b, err)
	}
}

func TestSessionNames(t *testing.T) {
	seen := map[string]string{}
	for _, c := range [][2]string{
		{"https://127.0.0.1/app", "/srv/app"}, {"https://127.0.0.1/app", "/home/me/app"},
		{"https://127.0.0.1/other", "/srv/app"},
		{"/r", "/"}, {"/r", "/..."}, {"/r", "/a b/ü"}, {"/r", "/" + strings.Repeat("long", 60)}, {"/ra", "/b"},
		{"/r", "/a/b"},
		{"/r", "/a..b"}, {"/r", "/a....b...c"}, {"/r", "/x.lock"}, {"/r", "/x."},
	} {
		name := statedir.SessionName(c[0], c[1])
		if err := (control.MountRequest{Session: name}).ValidateSession(); err != nil {
			t.Errorf("session name for %q: %v", c, err)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q have the same name %s", c, other, name)
		}
		seen[name] = c[0] + c[1]
		if name != statedir.SessionName(c[0], c[1]) {
			t.Error("the name of the same directory changed")
		}
	}
	if name := statedir.SessionName("https://127.0.0.1/app", "/srv/app"); !strings.HasPrefix(name, "app-") ||
		len(name) != 12 {
		t.Errorf("session name: got %s", name)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"session":"a","dir":"/a","format":"sha1"}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"session":"a","dir":"/a","format":"sha1","redirects":[{"path":"x","backing":"0"}],"counted":true,"changed":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := statedir.DecodeRecord(text)
		if err != nil {
			if !errors.Is(err, statedir.ErrRecord) && !errors.Is(err, statedir.ErrNewer) {
				t.Errorf("invalid record: got error %v", err)
			}
			return
		}
		// these paths are removed and mounted, so they must be below the mount's home directory and the mount
		for _, d := range r.Redirects {
			if filepath.Dir(filepath.Join("/h/redirect", d.Backing)) != "/h/redirect" || !filepath.IsLocal(d.Path) {
				t.Errorf("unsafe redirect %+v was accepted", d)
			}
		}
		home := t.TempDir()
		if err := r.Save(home); err != nil {
			t.Fatal(err)
		}
		if again, err := statedir.ReadRecord(home); err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("record was read as %+v, then as %+v (%v)", r, again, err)
		}
	})
}

func encodeRecord(t *testing.T, r statedir.Record) []byte {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
