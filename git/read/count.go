package read

import (
	"bytes"
	"context"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// maxCountedPaths is the maximum size in bytes of the paths that CountPaths counts.
const maxCountedPaths = 4 << 20

// maxLine is the maximum length of a line with the ids of two trees.
const maxLine = 2*64 + 2

// CountPaths returns the number of paths that differ between each pair of trees, which are named by their ids. No
// contents are read. The number is -1 if a tree is missing, and for the last pairs if too many paths differ.
func (r Repo) CountPaths(ctx context.Context, pairs [][2]string) ([]int, error) {
	known := map[string]int{} // number of paths, or -1, by the line that git prints before the paths of a pair
	var in strings.Builder
	for _, p := range pairs {
		if line := lineOf(p); known[line] == 0 {
			known[line] = -1
			in.WriteString(line)
		}
	}
	if len(pairs) > 0 {
		cmd := r.Command(ctx, "diff-tree", "--stdin", "-r", "-z", "--name-only", "--no-renames")
		cmd.Stdin = strings.NewReader(in.String())
		out, cut, err := Output(cmd, maxCountedPaths)
		if err != nil && (!gitcmd.Exited(err, 128) || ctx.Err() != nil) { // git exits with 128 if a tree below is missing
			return nil, err
		}
		countLines(out, known, cut)
	}
	counts := make([]int, len(pairs))
	for i, p := range pairs {
		counts[i] = known[lineOf(p)]
	}
	return counts, nil
}

// lineOf returns the line of a pair of trees in the input and in the output of git diff-tree.
func lineOf(pair [2]string) string { return pair[0] + " " + pair[1] + "\n" }

// countLines counts the paths in the output of git diff-tree, which end with NUL, after each line that is known. Such a
// line may follow another one at once. If the output is cut off, the number of the last line is unknown.
func countLines(out []byte, known map[string]int, cut bool) {
	current := ""
	for len(out) > 0 {
		if line, _, ok := bytes.Cut(out[:min(len(out), maxLine)], []byte("\n")); ok {
			if _, ok := known[string(line)+"\n"]; ok {
				current, out = string(line)+"\n", out[len(line)+1:]
				known[current] = 0
				continue
			}
		}
		_, rest, ok := bytes.Cut(out, []byte{0})
		if !ok {
			break
		}
		known[current]++
		out = rest
	}
	if cut {
		known[current] = -1
	}
}
