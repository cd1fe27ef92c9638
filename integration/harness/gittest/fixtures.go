package gittest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// These constants describe the entries that Tricky creates.
const (
	TrickyWide     = "wide" // name of a directory with many entries
	TrickyEntries  = 20_000 // number of entries of this directory
	TrickyDepth    = 40     // number of directories above the file "bottom"
	TrickyGitlink  = "modules/elsewhere"
	trickyLongName = 255 // length in bytes of the longest name that file systems allow
)

// Tricky adds a commit to main that creates files with unusual names, types, sizes and places. Existing files are kept.
// It returns the commit.
func (r *Repo) Tricky() (object.ID, error) {
	files := map[string]File{
		"README.md":                         {Data: []byte("# Tricky\n")},
		"empty":                             {},
		"crlf.txt":                          {Data: []byte("one\r\ntwo\r\n")},
		".gitattributes":                    {Data: []byte("crlf.txt -text\n")},
		"no-newline":                        {Data: []byte("no newline at the end")},
		"binary":                            {Data: []byte{0, 1, 2, 0xff, 0xfe, 0}},
		"bin/run.sh":                        {Data: []byte("#!/bin/sh\necho ran\n"), Mode: executable},
		"latin1-\xe9t\xe9":                  {Data: []byte("no UTF-8\n")},
		"\xff\xfe\x01":                      {Data: []byte("no text\n")},
		"ünï/cödé/日本語":                      {Data: []byte("UTF-8\n")},
		"combining-e\u0301":                 {Data: []byte("decomposed\n")},
		"composed-\u00e9":                   {Data: []byte("composed\n")},
		"spaces and\ttab":                   {Data: []byte("white\n")},
		"new\nline":                         {Data: []byte("a line break in the name\n")},
		"quote\"back\\slash":                {Data: []byte("quoting\n")},
		"-dash":                             {Data: []byte("looks like an option\n")},
		"*?[x]":                             {Data: []byte("looks like a pattern\n")},
		"Case":                              {Data: []byte("upper\n")},
		"case":                              {Data: []byte("lower\n")},
		"...":                               {Data: []byte("three dots\n")},
		strings.Repeat("n", trickyLongName): {Data: []byte("long name\n")},
		// In trees, a directory is sorted as if its name ended with a slash, so it is sorted between these two names.
		"order":           {},
		"order-x":         {Data: []byte("before order.d\n")},
		"order.d/file":    {Data: []byte("in order.d\n")},
		"order0":          {Data: []byte("behind order.d\n")},
		"links/file":      {Data: []byte("../README.md"), Mode: symlink},
		"links/directory": {Data: []byte("../bin"), Mode: symlink},
		"links/dangling":  {Data: []byte("nowhere/at/all"), Mode: symlink},
		"links/self":      {Data: []byte("self"), Mode: symlink},
		"links/absolute":  {Data: []byte("/etc/hostname"), Mode: symlink},
		"links/bytes":     {Data: []byte("../latin1-\xe9t\xe9"), Mode: symlink},
		"links/long":      {Data: []byte(strings.Repeat("d/", 1000) + "end"), Mode: symlink},
		".gitmodules": {Data: []byte("[submodule \"elsewhere\"]\n\tpath = " + TrickyGitlink +
			"\n\turl = https://example.invalid/elsewhere.git\n")},
		TrickyGitlink: {Data: bytes.Repeat([]byte("1"), 2*r.format.Size()), Mode: gitlink},
		"same/a":      {Data: []byte("the same content\n")},
		"same/b":      {Data: []byte("the same content\n")},
		strings.Repeat("deep/", TrickyDepth) + "bottom":                           {Data: []byte("deep\n")},
		strings.Repeat(strings.Repeat("l", trickyLongName)+"/", 10) + "long path": {Data: []byte("long path\n")},
	}
	for i := range TrickyEntries {
		// There are only 100 different contents, because the names matter and the creation of objects takes time.
		files[fmt.Sprintf("%s/entry-%05d", TrickyWide, i)] = File{Data: fmt.Appendf(nil, "%d\n", i%100)}
	}
	return r.Commit("main", files, "Everything that goes wrong")
}

// Sized adds a commit to main with dirs directories of filesPerDir text files each, named dNNNN/fNNNN.txt. The contents
// are all different and have between 40 and 2,000 bytes; most are short, like source files.
func (r *Repo) Sized(dirs, filesPerDir int) (object.ID, error) {
	files := make(map[string]File, dirs*filesPerDir)
	for d := range dirs {
		for f := range filesPerDir {
			files[fmt.Sprintf("d%04d/f%04d.txt", d, f)] = File{Data: text(uint64(d), uint64(f))}
		}
	}
	return r.Commit("main", files, fmt.Sprintf("%d files", len(files)))
}

// text returns a text that depends only on a and b, and is different for different numbers.
func text(a, b uint64) []byte {
	words := []string{"object", "tree", "commit", "blob", "pack", "return", "if", "err", "func", "range"}
	rnd := rand.New(rand.NewPCG(a, b))
	out := fmt.Appendf(nil, "// file %d of directory %d\n", b, a)
	size := 40 + rnd.IntN(44)*rnd.IntN(44)
	for len(out) < size {
		out = append(out, words[rnd.IntN(len(words))]...)
		out = append(out, " \n"[rnd.IntN(8)/7])
	}
	return append(out, '\n')
}

// History adds n commits to main. Each appends a line to log.txt and rewrites one of ten files. It returns the commits,
// oldest first.
func (r *Repo) History(n int) ([]object.ID, error) {
	var lines []byte
	return r.commit("main", n, "Step", func(i int) map[string]File {
		lines = fmt.Appendf(lines, "step %d\n", i+1)
		return map[string]File{
			"log.txt":                         {Data: lines},
			fmt.Sprintf("files/%d.txt", i%10): {Data: text(uint64(i), 1<<32)},
		}
	})
}
