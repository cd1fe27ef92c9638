package promisor

import (
	"bufio"
	"path"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

const (
	// firstNeighbours is how many blobs are added to the first question for one object of an
	// unknown command.
	firstNeighbours = 64
	// mostNeighbours bounds them.
	mostNeighbours = 4096
	// manyWants is the number of wants above which a command is taken for one that requests
	// everything at once.
	manyWants = 8
)

// neighbours predicts for unknown commands: the files beside the wanted one in HEAD's tree, then
// the rest of the tree from there on, then older versions, newest first; four times as many with
// each question.
func (q *question) neighbours() error {
	if len(q.wants) >= manyWants && q.round == 0 {
		return nil
	}
	q.allow(firstNeighbours)
	q.limit = min(q.limit, mostNeighbours)
	type file struct {
		path string
		side
	}
	var files []file
	at := -1
	wanted := map[object.ID]bool{}
	for _, id := range q.wants {
		wanted[id] = true
	}
	err := q.quarantine.stream(q.ctx, "", []string{"ls-tree", "-r", "-z", "HEAD"}, func(r *bufio.Reader) error {
		return readTree(r, func(path string, s side) error {
			if at < 0 && wanted[s.id] {
				at = len(files)
			}
			files = append(files, file{path, s})
			return nil
		})
	})
	if err != nil {
		return err
	}
	if at >= 0 {
		dir := path.Dir(files[at].path) + "/"
		for _, f := range files {
			if dir == "./" && !strings.Contains(f.path, "/") || strings.HasPrefix(f.path, dir) {
				if err := q.add(f.side); err != nil {
					return err
				}
			}
		}
		for _, f := range slices.Concat(files[at:], files[:at]) {
			if err := q.add(f.side); err != nil {
				return err
			}
		}
	}
	if q.round == 0 {
		return nil
	}
	return q.walk([]string{"--all"}, nil, nil, everything)
}
