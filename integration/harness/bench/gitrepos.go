package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

const farChanges = 1000 // approximate number of paths in which the branch "other" differs from main

// prepare creates a bare repository that uses the objects of repo as alternates and has three branches: main, which is
// checked out; "other", which differs from main in about a thousand files; and "topic", which merges into main without
// conflicts. The branches name commits of repo if there are suitable commits; otherwise prepare creates commits.
func (b *bench) prepare(repo string) (string, error) {
	repo, err := filepath.Abs(repo)
	if err != nil {
		return "", err
	}
	root := filepath.Join(b.work, "served-"+repoName(repo))
	served := filepath.Join(root, repoName(repo)+".git")
	git := func(args ...string) (string, error) {
		return gittest.Git(context.Background(), "", append([]string{"--git-dir", served}, args...)...)
	}
	if _, err := gittest.Git(context.Background(), "", "init", "-q", "--bare", "-b", "main", served); err != nil {
		return "", err
	}
	objects, err := gittest.Git(context.Background(), repo, "rev-parse", "--path-format=absolute", "--git-path", "objects")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(served, "objects", "info", "alternates"), []byte(objects+"\n"),
		0o644); err != nil {
		return "", err
	}
	head, err := gittest.Git(context.Background(), repo, "rev-parse", "HEAD")
	if err != nil {
		return "", err
	}
	main, topic, err := realMerge(git, head)
	if err != nil {
		return "", err
	}
	other, err := realDistance(git, main)
	if err != nil {
		return "", err
	}
	for _, ref := range [][2]string{{"main", main}, {"topic", topic}, {"other", other}} {
		if ref[1] == "" {
			continue
		}
		if _, err := git("update-ref", "refs/heads/"+ref[0], ref[1]); err != nil {
			return "", err
		}
	}
	if topic == "" {
		err = synthetic(served, git, "topic", 50)
	}
	if other == "" && err == nil {
		err = synthetic(served, git, "other", farChanges)
	}
	return served, err
}

// realMerge finds the newest merge of two parents that has no conflicts and whose branch changed at least 20 files. It
// returns topic "" if there is none.
func realMerge(git func(...string) (string, error), head string) (main, topic string, err error) {
	out, err := git("rev-list", "--first-parent", "--merges", "--parents", "-n", "300", head)
	if err != nil {
		return "", "", err
	}
	files, err := git("ls-tree", "-r", "--name-only", head)
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(out) {
		commits := strings.Fields(line)
		if len(commits) != 3 {
			continue
		}
		far, err := git("diff-tree", "-r", "--name-only", head, commits[1])
		if err != nil {
			return "", "", err
		}
		if strings.Count(far, "\n") > strings.Count(files, "\n")/2 {
			break // this commit and older ones differ from head in more than half of the files
		}
		changed, err := git("diff", "--name-only", commits[1]+"..."+commits[2])
		if err != nil || strings.Count(changed, "\n") < 20 { // git diff fails if the parents have no common history
			continue
		}
		if _, err := git("merge-tree", "--write-tree", commits[1], commits[2]); err == nil {
			return commits[1], commits[2], nil
		}
	}
	return head, "", nil
}

// realDistance returns the ID of the first ancestor of main that differs from main in at least farChanges files. It
// returns "" if the history is too short, or if this ancestor differs in too many files.
func realDistance(git func(...string) (string, error), main string) (string, error) {
	distance := func(ancestor int) (changed int, known bool, err error) {
		commit := fmt.Sprintf("%s~%d", main, ancestor)
		if _, err := git("rev-parse", "-q", "--verify", commit); err != nil {
			return 0, false, nil // the history ends before this commit
		}
		out, err := git("diff-tree", "-r", "--name-only", commit, main)
		return strings.Count(out, "\n"), true, err
	}
	low, high := 0, 1
	for {
		changed, known, err := distance(high)
		if err != nil || !known {
			return "", err
		}
		if changed >= farChanges {
			break
		}
		low, high = high, 2*high
	}
	for high-low > 1 {
		middle := (low + high) / 2
		changed, _, err := distance(middle)
		if err != nil {
			return "", err
		}
		if changed >= farChanges {
			high = middle
		} else {
			low = middle
		}
	}
	changed, _, err := distance(high)
	if err != nil || changed > 3*farChanges { // a single step of the history changes too many files
		return "", err
	}
	return git("rev-parse", fmt.Sprintf("%s~%d", main, high))
}

// synthetic creates a branch with one commit on top of main that changes n files in different directories.
func synthetic(repo string, git func(...string) (string, error), branch string, n int) error {
	list, err := git("-c", "core.quotePath=false", "ls-tree", "-r", "main")
	if err != nil {
		return err
	}
	var files []string
	for line := range strings.Lines(list) {
		if head, path, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok && strings.HasPrefix(head, "100644 ") &&
			!strings.HasPrefix(path, `"`) {
			files = append(files, path)
		}
	}
	cmd := exec.Command("git", "--git-dir", repo, "fast-import", "--quiet")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	w := bufio.NewWriter(stdin)
	fmt.Fprintf(w,
		"commit refs/heads/%s\ncommitter bench <bench@example.invalid> 1700000000 +0000\ndata 7\nchange\n\nfrom refs/heads/main^0\n", branch)
	rnd := rand.New(rand.NewPCG(2, uint64(n)))
	for i := range n {
		content := text(rnd)
		fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n%s\n", strconv.Quote(files[(2*i+1)*len(files)/(2*n)]),
			len(content), content)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := stdin.Close(); err != nil {
		return err
	}
	return cmd.Wait()
}
