package read

import (
	"context"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
)

// Missing returns those ids, each once, whose objects git does not find in a repository.
func Missing(ctx context.Context, git gitcmd.Repo, ids []object.ID) (lacks []object.ID, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var asked []object.ID
	seen := map[object.ID]bool{}
	for _, id := range ids {
		if !seen[id] {
			seen[id], asked = true, append(asked, id)
		}
	}
	out, err := git.Output(ctx, object.Lines(asked), "cat-file", "--batch-check")
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutSuffix(line, " missing\n"); ok {
			if id, err := object.ParseID(text); err == nil {
				lacks = append(lacks, id)
			}
		}
	}
	return lacks, err
}
