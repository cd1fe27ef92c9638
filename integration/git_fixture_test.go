package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// gitFixture is the repository that scenarios use, its server, and a clone that is copied for each pair.
type gitFixture struct {
	w        *world
	server   served
	repo     string // bare
	template string // a home with a clone in it
	env      []string
	clones   bool // pairs are of two clones

	made atomic.Int64 // pairs

	mu   sync.Mutex
	over map[string]int // requests answered, by repository
}

// lines returns a text of n lines that differs from all others.
func lines(n int, about string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d of %s\n", i+1, about)
	}
	return b.String()
}

// fixtureFiles is the first commit.
func fixtureFiles(f object.Format, sub object.ID) map[string]gittest.File {
	files := map[string]gittest.File{
		".gitignore":       {Data: []byte("*.o\n/build/\n!keep.o\n*.tmp\n")},
		".gitattributes":   {Data: []byte("*.png binary\n*.bat text eol=crlf\n*.id ident\n*.c diff=cpp\nCHANGES merge=union\n/vendor export-ignore\n")},
		".gitmodules":      {Data: []byte("[submodule \"sub\"]\n\tpath = sub\n\turl = ../sub.git\n")},
		"sub":              {Data: []byte(sub.String()), Mode: "160000"},
		"README.md":        {Data: []byte(lines(30, "the README"))},
		"LICENSE":          {Data: []byte(lines(60, "the license"))},
		"Makefile":         {Data: []byte("all:\n\t@echo made\n")},
		"CHANGES":          {Data: []byte("changes\n=======\n- first\n")},
		"state.txt":        {Data: []byte("good\n")},
		"bin/run.sh":       {Data: []byte("#!/bin/sh\necho ran\n"), Mode: "100755"},
		"bin/tool":         {Data: []byte("#!/bin/sh\necho tool\n"), Mode: "100755"},
		"link":             {Data: []byte("README.md"), Mode: "120000"},
		"linkdir":          {Data: []byte("docs"), Mode: "120000"},
		"dangling":         {Data: []byte("no/where"), Mode: "120000"},
		"data/blob.bin":    {Data: []byte(strings.Repeat("\x00\x01\xff binary", 700))},
		"data/empty":       {},
		"deep/a/b/c/d/e.x": {Data: []byte("deep\n")},
		"docs/old-name.md": {Data: []byte(lines(40, "what was renamed"))},
		"crlf/a.bat":       {Data: []byte("echo one\necho two\n")},
		"crlf/b.bat":       {Data: []byte("echo three\n")},
		"ident/x.id":       {Data: []byte("$Id$\nident\n")},
		"keep.o":           {Data: []byte("tracked though it looks ignored\n")},
	}
	for _, name := range []string{"sp ace", "tab\there", "ünï", "日本語.txt", "-dash", "star*", "quo\"te", "new\nline",
		"back\\slash", "latin1-\xe9"} {
		files["odd/"+name] = gittest.File{Data: []byte("odd " + name + "\n")}
	}
	for d := range 12 {
		for n := range 12 {
			path := fmt.Sprintf("src/m%02d/f%02d.c", d, n)
			files[path] = gittest.File{Data: []byte(lines(40, path))}
		}
	}
	for n := range 20 {
		path := fmt.Sprintf("docs/d%02d.md", n)
		files[path] = gittest.File{Data: []byte(lines(25, path))}
	}
	for n := range 60 {
		path := fmt.Sprintf("vendor/p%d/v%02d.txt", n%4, n)
		files[path] = gittest.File{Data: []byte(lines(10, path))}
	}
	for n := range 5 {
		files[fmt.Sprintf("assets/i%d.png", n)] =
			gittest.File{Data: []byte(strings.Repeat(fmt.Sprintf("\x89PNG\x00%d", n), 300))}
	}
	return files
}

// branches makes the rest of the repository with git itself, in a clone. B is where branches leave main.
const branches = `
commit() { n=$((n+1)); GIT_AUTHOR_DATE="$((1710000000+60*n)) +0000" GIT_COMMITTER_DATE="$((1710000000+60*n)) +0000" git commit -q -a -m "$@"; }
merge() { n=$((n+1)); GIT_AUTHOR_DATE="$((1710000000+60*n)) +0000" GIT_COMMITTER_DATE="$((1710000000+60*n)) +0000" git merge -q --no-edit "$@"; }
n=0
edit() { sed -i "${2}s/\$/ $3/" "$1"; }
git checkout -q -b side main~3
edit src/m10/f10.c 10 side; git commit -q -a -m 'Side work'
echo side >side.txt; git add side.txt; commit 'A file of the side'
git checkout -q main
merge --no-ff side
git tag -a -m 'Version one' v1.0 main
B=$(git rev-parse main)

edit src/m01/f01.c 5 main; commit 'Main edits m01'
edit src/m05/f01.c 20 main; echo '- second' >>CHANGES; commit 'Main edits m05'
echo new >src/new.c; git add src/new.c; edit src/m02/f02.c 5 main; commit 'Main adds a file'
git tag v1.1

git checkout -q -b topic $B
edit src/m01/f01.c 30 topic; commit 'Topic one'
echo topic >topic.txt; git add topic.txt; edit docs/d01.md 3 topic; commit 'Topic two' -m 'With a body.'
edit docs/d01.md 20 topic; git mv docs/d05.md docs/d05-moved.md; commit 'Topic three'

git checkout -q -b conflict $B
edit src/m01/f01.c 5 conflict; commit 'In conflict'
edit docs/d02.md 3 conflict; commit 'Clean'

git checkout -q -b renames $B
git mv src lib; edit lib/m05/f01.c 2 renamed; git mv docs/d03.md doc3.md; commit 'Everything moved'

git checkout -q -b far main~20
for d in 03 04 06 07 08; do for f in 00 01 02 03 04 05 06 07 08 09 10 11; do edit src/m$d/f$f.c 7 far; done; done
git rm -q -r docs/d1* vendor/p3; mkdir far; for i in 1 2 3 4 5 6 7 8 9; do echo far $i >far/$i; done; git add far
commit 'Far away'

git checkout -q -b octo1 main; edit src/m03/f03.c 3 octo; commit 'Octo one'
git checkout -q -b octo2 main; edit src/m04/f04.c 3 octo; commit 'Octo two'
git checkout -q -b types main
git rm -q --cached bin/tool link; rm -r bin/tool link linkdir docs/d04.md
ln -s run.sh bin/tool; echo no link >link; mkdir linkdir docs/d04.md; echo in >linkdir/in; echo in >docs/d04.md/in
chmod +x Makefile; chmod -x bin/run.sh; git add -A; commit 'Types change'
git checkout -q -b eol main
printf 'crlf/b.bat -text\n' >>.gitattributes; printf 'echo four\r\n' >>crlf/a.bat; printf 'raw\n' >crlf/b.bat; commit 'Attributes change'
git push -q origin --all
git push -q origin --tags
`

// newGitFixture makes and serves the repository.
func newGitFixture(w *world, f object.Format) *gitFixture {
	w.Helper()
	r := w.repo("fixture.git", f)
	sub := w.repo("sub.git", f)
	subTip := w.commit(sub, map[string]gittest.File{"in-sub.txt": {Data: []byte("in the submodule\n")},
		"dir/more": {Data: []byte("more\n")}})
	w.commit(r, fixtureFiles(f, subTip))
	hot := lines(40, "src/m00/f00.c")
	for i := range 24 {
		hot = strings.Replace(hot, fmt.Sprintf("line %d of", i+2), fmt.Sprintf("line %d, changed, of", i+2), 1)
		path := fmt.Sprintf("docs/d%02d.md", i%20)
		change := map[string]gittest.File{
			"src/m00/f00.c": {Data: []byte(hot)},
			path:            {Data: []byte(lines(25, path) + fmt.Sprintf("revised in %d\n", i))},
		}
		switch i {
		case 9:
			change["docs/old-name.md"] = gittest.File{Delete: true}
			change["docs/new-name.md"] = gittest.File{Data: []byte(lines(40, "what was renamed"))}
		case 13:
			change["state.txt"] = gittest.File{Data: []byte("bad\n")}
		case 15:
			change["docs/new-name.md"] = gittest.File{Data: []byte(lines(41, "what was renamed"))}
		}
		must[object.ID](w)(r.Commit("main", change, fmt.Sprintf("Revision %d", i)))
	}
	work := w.clone("file://" + r.Path)
	w.shell(w.root, "sh", "-e", "-c", "cd "+work+"\n"+branches)
	return w.gitFixture(r)
}

// gitFixture serves a repository as one for scenarios.
func (w *world) gitFixture(r *gittest.Repo) *gitFixture {
	w.Helper()
	x := &gitFixture{w: w, repo: r.Path, template: w.place("template"), over: map[string]int{}}
	w.git(r.Path, "config", "http.receivepack", "true")
	w.git(r.Path, "repack", "-q", "-a", "-d")
	x.server = w.serve(gittest.ServerOptions{Each: x.answered})
	x.server.Inject(gittest.Fault{Kind: gittest.NoObjectInfo, On: gittest.Capabilities})
	config := filepath.Join(w.root, "gitconfig")
	w.check(os.WriteFile(config, []byte(userConfig), 0o644))
	x.env = []string{"PATH=" + gitPath(), "GIT_CONFIG_GLOBAL=" + config, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=0",
		"LC_ALL=C", "GIT_PAGER=cat", "GIT_EDITOR=true", "GIT_PROGRESS_DELAY=3600"}
	w.git(w.root, "clone", "-q", x.server.URL(filepath.Base(r.Path)), filepath.Join(x.template, "tree"))
	return x
}

// userConfig is the global configuration of both sides. It turns off automatic maintenance: a mount never runs it, and
// a clone that did so in the middle of a test would expire its reflog, whose dates are old.
const userConfig = `[user]
	name = A U Thor
	email = author@example.com
[init]
	defaultBranch = main
[protocol "file"]
	allow = always
[safe]
	directory = *
[gc]
	auto = 0
[maintenance]
	auto = false
`

func (x *gitFixture) answered(r gittest.Request) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over[r.Repo]++
}

// asked returns the requests for one name of a repository, and how many of them are finished.
func (x *gitFixture) asked(repo string) (requests, blobs, over int) {
	for _, r := range x.server.Log().Requests() {
		if r.Repo == repo {
			requests++
			blobs += r.Blobs
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return requests, blobs, x.over[repo]
}
