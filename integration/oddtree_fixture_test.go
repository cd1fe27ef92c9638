package integration

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// oddRepo is a served repository whose objects git would not make. Its methods write objects as they are described,
// without a check.
type oddRepo struct {
	*gittest.Repo
	w      *world
	format object.Format
}

// oddEntry is an entry of a tree. The mode is the text in the tree, such as "100644".
type oddEntry struct {
	mode, name string
	id         object.ID
}

// oddRepo makes an empty repository to be served.
func (w *world) oddRepo(name string, f object.Format) oddRepo {
	w.Helper()
	return oddRepo{w.repo(name, f), w, f}
}

// put writes an object.
func (r oddRepo) put(kind string, content []byte) object.ID {
	r.w.Helper()
	cmd := gitcmd.New(context.Background(), "-C", r.Path, "hash-object", "-t", kind, "-w", "--stdin", "--literally")
	cmd.Stdin = bytes.NewReader(content)
	out, err := gitcmd.Output(cmd)
	if err != nil {
		r.w.Fatal(err)
	}
	return must[object.ID](r.w)(object.ParseIDOf(r.format, strings.TrimSpace(string(out))))
}

// tree writes a tree with these entries, in this order.
func (r oddRepo) tree(entries ...oddEntry) object.ID {
	r.w.Helper()
	var b []byte
	for _, e := range entries {
		b = append(fmt.Appendf(b, "%s %s\x00", e.mode, e.name), e.id.Bytes()...)
	}
	return r.put("tree", b)
}

// file returns the entry of a file with these contents.
func (r oddRepo) file(name, content string) oddEntry {
	r.w.Helper()
	return oddEntry{"100644", name, r.put("blob", []byte(content))}
}

// dir returns the entry of a directory with these entries, in this order.
func (r oddRepo) dir(name string, entries ...oddEntry) oddEntry {
	r.w.Helper()
	return oddEntry{"40000", name, r.tree(entries...)}
}

// publish makes a commit of a tree the tip of a branch, whose previous tip becomes the parent, and returns the commit.
func (r oddRepo) publish(branch string, tree object.ID) object.ID {
	r.w.Helper()
	parent := ""
	if tip, err := gittest.Git(context.Background(), r.Path, "rev-parse", "--verify", "--quiet",
		"refs/heads/"+branch); err == nil {
		parent = "parent " + strings.TrimSpace(tip) + "\n"
	}
	const who = "Odd <odd@example.invalid> 1700000000 +0000"
	id := r.put("commit", fmt.Appendf(nil, "tree %s\n%sauthor %s\ncommitter %s\n\nodd\n", tree, parent, who, who))
	r.w.git(r.Path, "update-ref", "refs/heads/"+branch, id.String())
	return id
}

// around returns the entries of a root with the odd directory "odd", an ordinary directory and a file. If inRoot is
// set, the odd entries are in the root itself.
func (r oddRepo) around(inRoot bool, odd ...oddEntry) []oddEntry {
	r.w.Helper()
	plain := []oddEntry{r.dir("plain", r.file("a", "a\n"), r.file("b", "b\n")), r.file("root", "root\n")}
	if inRoot {
		return append(odd, plain...)
	}
	return slices.Concat([]oddEntry{r.dir("odd", odd...)}, plain)
}
