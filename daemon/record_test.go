package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

func sampleRecord() record {
	return record{
		Version: recordVersion, Session: "app-1", Remote: "https://127.0.0.1/app", Dir: "/srv/app", Asked: "main", Ref: "refs/heads/main",
		Commit: strings.Repeat("1", 40), Tree: strings.Repeat("2", 40), Format: "sha1", Time: time.Unix(1700000000, 0).UTC(), UID: 7, GID: 8,
		Began: time.Unix(1700000001, 0).UTC(), Until: time.Unix(1700600000, 0).UTC(), Redirects: []redirected{{"web/dist", "0"}}, Configured: []string{"web/dist"},
		Counted: true, Changed: 3, Bytes: 4096,
		Carried: control.SessionOptions{Remote: "https://127.0.0.1/s", Policy: control.PolicyIdle, Include: []string{"a"}, Exclude: []string{"b"}, NoDenyList: true, MaxFileSize: 9},
		Point:   &pointRecord{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Commit: strings.Repeat("3", 40), Tree: strings.Repeat("4", 40), State: strings.Repeat("5", 40)},
	}
}

func TestRecordIsReadAsItWasWritten(t *testing.T) {
	home := t.TempDir()
	if _, err := readRecord(home); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a record: %v", err)
	}
	want := sampleRecord()
	want.Made = []string{"/srv", "/srv/app"}
	if err := want.save(home); err != nil {
		t.Fatal(err)
	}
	for i, v := 0, reflect.ValueOf(want); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Fatalf("field %s is not tested", v.Type().Field(i).Name)
		}
	}
	if got, err := readRecord(home); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if names, err := os.ReadDir(home); err != nil || len(names) != 1 {
		t.Errorf("saving left %v, %v", names, err)
	}
	if err := syncRecord(home); err != nil {
		t.Error(err)
	}
}

func TestBadRecords(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *record)
		err    error
	}{
		"newer":                   {func(r *record) { r.Version = recordVersion + 1; r.Dir = "" }, errNewer},
		"no version":              {func(r *record) { r.Version = 0 }, errRecord},
		"a path for a name":       {func(r *record) { r.Session = "../x" }, errRecord},
		"relative directory":      {func(r *record) { r.Dir = "srv" }, errRecord},
		"no id":                   {func(r *record) { r.Commit = "main" }, errRecord},
		"id of another format":    {func(r *record) { r.Tree = strings.Repeat("2", 64) }, errRecord},
		"commit without a tree":   {func(r *record) { r.Tree = "" }, errRecord},
		"unknown format":          {func(r *record) { r.Format = "md5" }, errRecord},
		"negative":                {func(r *record) { r.Changed = -1 }, errRecord},
		"made elsewhere":          {func(r *record) { r.Made = []string{"/srv/other"} }, errRecord},
		"redirect leads out":      {func(r *record) { r.Redirects[0].Path = "../x" }, errRecord},
		"redirect is everything":  {func(r *record) { r.Redirects[0].Backing = "." }, errRecord},
		"backing leads out":       {func(r *record) { r.Redirects[0].Backing = ".." }, errRecord},
		"backing of another home": {func(r *record) { r.Redirects[0].Backing = "../../b/0" }, errRecord},
	} {
		r := sampleRecord()
		c.change(&r)
		if _, err := decodeRecord(encodeRecord(t, r)); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"", "{", "[]", "null", `{"version":"1"}`, `{"version":1}`} {
		if _, err := decodeRecord([]byte(text)); !errors.Is(err, errRecord) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestBaseOfARecord(t *testing.T) {
	r := sampleRecord()
	b, err := r.base()
	if err != nil || b.Commit.String() != r.Commit || b.Tree.String() != r.Tree || b.Ref != r.Ref || !b.Time.Equal(r.Time) {
		t.Errorf("%+v, %v", b, err)
	}
	r.Commit, r.Tree, r.Format, r.Point = "", "", "sha256", nil
	if b, err := r.base(); err != nil || !b.Commit.IsZero() || b.Format.String() != "sha256" {
		t.Errorf("of an unborn branch %+v, %v", b, err)
	}
}

func TestSessionNames(t *testing.T) {
	seen := map[string]string{}
	for _, c := range [][2]string{
		{"https://127.0.0.1/app", "/srv/app"}, {"https://127.0.0.1/app", "/home/me/app"}, {"https://127.0.0.1/other", "/srv/app"},
		{"/r", "/"}, {"/r", "/..."}, {"/r", "/a b/ü"}, {"/r", "/" + strings.Repeat("long", 60)}, {"/ra", "/b"}, {"/r", "/a/b"},
	} {
		name := SessionName(c[0], c[1])
		if err := control.ValidSession(name); err != nil {
			t.Errorf("%q: %v", c, err)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q are both %s", c, other, name)
		}
		seen[name] = c[0] + c[1]
		if name != SessionName(c[0], c[1]) {
			t.Error("it changes")
		}
	}
	if name := SessionName("https://127.0.0.1/app", "/srv/app"); !strings.HasPrefix(name, "app-") || len(name) != 12 {
		t.Errorf("named %s", name)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"session":"a","dir":"/a","format":"sha1"}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"session":"a","dir":"/a","format":"sha1","redirects":[{"path":"x","backing":"0"}],"counted":true,"changed":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decodeRecord(text)
		if err != nil {
			if !errors.Is(err, errRecord) && !errors.Is(err, errNewer) {
				t.Errorf("refused with %v", err)
			}
			return
		}
		for _, d := range r.Redirects { // what is removed and mounted stays below the home and the mount
			if filepath.Dir(filepath.Join("/h/redirect", d.Backing)) != "/h/redirect" || !filepath.IsLocal(d.Path) {
				t.Errorf("%+v came through", d)
			}
		}
		home := t.TempDir()
		if err := r.save(home); err != nil {
			t.Fatal(err)
		}
		if again, err := readRecord(home); err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("read as %+v, then as %+v (%v)", r, again, err)
		}
	})
}
