package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
)

// makeRepositories creates a small, a medium and a large repository with some history, and returns their paths. Their
// contents are the same in every run. Real repositories, which can be passed as arguments, give more realistic results,
// because their trees and deltas are less regular.
func makeRepositories(work string) []string {
	var repos []string
	for _, r := range []struct {
		name           string
		files, commits int
	}{{"small", 1000, 500}, {"middle", 14000, 5000}, {"large", 110000, 2000}} {
		path := filepath.Join(work, r.name+".git")
		check(makeRepository(path, r.files, r.commits))
		repos = append(repos, path)
	}
	return repos
}

// makeRepository creates a bare repository whose first commit contains many files, and whose further commits change one
// file each.
func makeRepository(path string, files, commits int) error {
	if err := exec.Command("git", "init", "-q", "--bare", "-b", "main", path).Run(); err != nil {
		return err
	}
	cmd := exec.Command("git", "--git-dir", path, "fast-import", "--quiet")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	w := bufio.NewWriter(stdin)
	rnd := rand.New(rand.NewPCG(1, uint64(files)))
	for c := range commits {
		fmt.Fprintf(w, "commit refs/heads/main\ncommitter bench <bench@example.invalid> %d +0000\ndata 7\nchange\n\n",
			1_700_000_000+60*c)
		if c == 0 {
			for i := range files {
				modify(w, i, text(rnd))
			}
			continue
		}
		modify(w, rnd.IntN(files), text(rnd))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := stdin.Close(); err != nil {
		return err
	}
	return cmd.Wait()
}

func modify(w *bufio.Writer, i int, content string) {
	fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n%s\n", filePath(i), len(content), content)
}

// filePath returns the path of the file with the number i. The files are distributed over directories with about 25
// files each, a few levels deep.
func filePath(i int) string {
	dir := i / 25
	return fmt.Sprintf("part%d/module%02d/group%d/file%05d.txt", dir/400, dir/20%20, dir%20, i)
}

var words = strings.Fields("the a tree of blob path name reads writes when then returns error value index commit parent file mode link")

// text returns a random text of between a few hundred bytes and about 20 KiB; most texts are short. It compresses about
// as well as source code.
func text(rnd *rand.Rand) string {
	var b strings.Builder
	for range 10 + int(rnd.ExpFloat64()*80) {
		for range 4 + rnd.IntN(8) {
			b.WriteString(words[rnd.IntN(len(words))])
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%x\n", rnd.Uint32())
	}
	return b.String()
}
