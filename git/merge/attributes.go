package merge

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrAttributes means that contents of a .gitattributes file are missing, so that git merged without attributes.
var ErrAttributes = errors.New("contents of .gitattributes are missing")

const (
	attributesName = ".gitattributes"
	maxAttributes  = 16 << 20 // maximum total size of the .gitattributes files of a merge, in bytes
	maxArgs        = 200      // maximum number of paths or ids that one git command gets as arguments
)

// attributes is a .gitattributes file of a tree.
type attributes struct {
	path, id string
	size     int64
	text     []byte
}

// mergeWords are the words with which attributes determine how git merges contents: merge is an attribute, binary
// contains it (see gitattributes(5)), and both are used to define others.
var mergeWords = []string{"merge", "binary", "conflict-marker-size"}

// decide reports whether the attributes in the files may determine how contents are merged.
func decide(files []attributes) bool {
	return slices.ContainsFunc(files, func(f attributes) bool {
		return slices.ContainsFunc(mergeWords, func(word string) bool { return bytes.Contains(f.text, []byte(word)) })
	})
}

// attributesFor returns the .gitattributes files of the commit ours in the directories above the paths. It returns
// ErrAttributes if contents of one are missing.
func attributesFor(run Run, ours string, paths []string) (files []attributes, err error) {
	var names []string
	seen := map[string]bool{}
	for _, path := range paths {
		for at := len(path); at >= 0 && !seen[path[:at]]; {
			seen[path[:at]] = true
			if at = strings.LastIndexByte(path[:at], '/'); at > 0 && filepath.IsLocal(path[:at]) {
				names = append(names, path[:at+1]+attributesName)
			}
		}
	}
	names = append(names, attributesName)
	slices.Sort(names)
	for some := range slices.Chunk(slices.Compact(names), maxArgs) {
		out, err := run(append([]string{"--literal-pathspecs", "ls-tree", "-z", "-l", "--full-tree", "--", ours}, some...)...)
		if err != nil {
			return nil, err
		}
		if files, err = appendListed(files, out); err != nil {
			return nil, err
		}
	}
	return files, read(run, files)
}

// appendListed appends the files in the output of `git ls-tree -z -l`: "MODE TYPE ID SIZE\tPATH\0" for each file. The
// size of a missing one is BAD. git reads no attributes from symbolic links.
func appendListed(files []attributes, out []byte) ([]attributes, error) {
	for line := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		head, path, ok := strings.Cut(line, "\t")
		fields := strings.Fields(head)
		if line == "" || ok && len(fields) == 4 && !strings.HasPrefix(fields[0], "100") {
			continue
		}
		if !ok || len(fields) != 4 {
			return nil, fmt.Errorf("parse output of git ls-tree: %.80q", line)
		}
		size, err := strconv.ParseInt(fields[3], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("merge: %w: %s", ErrAttributes, path)
		}
		files = append(files, attributes{path: path, id: fields[2], size: size})
	}
	return files, nil
}

// read sets the texts of the files. One git show prints the contents of many blobs without anything between them.
func read(run Run, files []attributes) error {
	total := int64(0)
	for _, f := range files {
		if total += f.size; f.size < 0 || total > maxAttributes {
			return fmt.Errorf("merge: the %s files have more than %d bytes", attributesName, maxAttributes)
		}
	}
	for some := range slices.Chunk(files, maxArgs) {
		args := []string{"show"}
		for _, f := range some {
			args = append(args, f.id)
		}
		out, err := run(append(args, "--")...)
		if err != nil {
			return err
		}
		for i := range some {
			n := min(some[i].size, int64(len(out)))
			if n < some[i].size {
				return fmt.Errorf("merge: read %s: contents are too short", some[i].path)
			}
			some[i].text, out = out[:n], out[n:]
		}
	}
	return nil
}

// workTree writes the files to a temporary directory, which git uses as its working tree, because git reads no
// attributes from trees (before 2.43) or in a bare repository. The function remove removes the directory.
func workTree(files []attributes) (dir string, remove func() error, err error) {
	if dir, err = os.MkdirTemp("", "artifactfs-merge-"); err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	root, err := os.OpenRoot(dir) // the names of a tree may contain ".."
	if err == nil {
		for _, f := range files {
			if at := strings.LastIndexByte(f.path, '/'); at > 0 {
				err = errors.Join(err, root.MkdirAll(f.path[:at], 0o700))
			}
			err = errors.Join(err, root.WriteFile(f.path, f.text, 0o600))
		}
		err = errors.Join(err, root.Close())
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("merge: write attributes: %w", err), remove())
	}
	return dir, remove, nil
}
