package main

import (
	"slices"
	"strings"
	"testing"
)

// table is an example of the output of "go tool covdata func".
const table = `github.com/artifactfs/artifactfs/fuse/read.go:40:			*file.Read		75.0%
github.com/artifactfs/artifactfs/fuse/read.go:12:			open			0.1%
github.com/artifactfs/artifactfs/fuse/attr.go:7:			*file.Attr		100.0%
github.com/artifactfs/artifactfs/fuse/attr.go:30:			unused			0.0%
github.com/artifactfs/artifactfs/cmd/artifactfs/main.go:9:		main			50.0%
github.com/artifactfs/artifactfs/cmd/artifactfs/` + triggerFile + `:12:	init	28.6%
total							(statements)		3.4%
`

func TestParseFunctions(t *testing.T) {
	got, err := parseFunctions(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	want := []function{
		{"cmd/artifactfs", "main.go", 9, "main"},
		{"fuse", "attr.go", 7, "*file.Attr"},
		{"fuse", "read.go", 12, "open"},
		{"fuse", "read.go", 40, "*file.Read"},
	}
	if sorted := got.sorted([]string{"cmd/artifactfs", "fuse"}); !slices.Equal(sorted, want) {
		t.Errorf("functions: got %v, want %v", sorted, want)
	}
	if files, packages := len(got.files()), len(got.packages()); files != 3 || packages != 2 {
		t.Errorf("got %d files and %d packages, want 3 and 2", files, packages)
	}
	for _, bad := range []string{
		"warning: no counters",
		"example.org/other/a.go:1:	f	50.0%",
		"github.com/artifactfs/artifactfs/a.go:x:	f	50.0%",
		"github.com/artifactfs/artifactfs/a.go:1:	f	half",
	} {
		if got, err := parseFunctions(strings.NewReader(bad)); err == nil {
			t.Errorf("parse %q: got %v, want an error", bad, got)
		}
	}
}

func TestBackgroundWorkIsRepeated(t *testing.T) {
	a, b, c := function{name: "a"}, function{name: "b"}, function{name: "c"}
	got := repeated([3]walk{{a: true, b: true}, {c: true}, {a: true, c: true}})
	if len(got) != 2 || !got[a] || !got[c] {
		t.Errorf("got %v, want a and c", got)
	}
}

func TestCommonIsWhatAllRunsEnter(t *testing.T) {
	a, b, c := function{name: "a"}, function{name: "b"}, function{name: "c"}
	got := common([]byRole{
		{daemon: {a: true, b: true}, command: {c: true}},
		{daemon: {b: true, c: true}, command: {c: true}},
		{daemon: {b: true}, command: {}},
	})
	if len(got[daemon]) != 1 || !got[daemon][b] || len(got[command]) != 0 {
		t.Errorf("got %v, want only b in the daemon", got)
	}
}
