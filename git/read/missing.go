package read

import (
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// Missing returns those ids, each once, whose objects git does not find. The function run runs git with a standard input, and
// returns its output.
func Missing(run func(in string, args ...string) ([]byte, error), ids []object.ID) (lacks []object.ID, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var in strings.Builder
	asked := map[object.ID]bool{}
	for _, id := range ids {
		if !asked[id] {
			in.WriteString(id.String() + "\n")
		}
		asked[id] = true
	}
	out, err := run(in.String(), "cat-file", "--batch-check")
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutSuffix(line, " missing\n"); ok {
			if id, err := object.ParseID(text); err == nil {
				lacks = append(lacks, id)
			}
		}
	}
	return lacks, err
}
