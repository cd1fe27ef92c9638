package promisor

import (
	"bufio"
	"path"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

const (
	// firstNeighbours is the number of blobs that are added to the first request of a command without a plan, if this
	// request is for a single object. (A plan is a function that predicts the objects that a command needs.)
	firstNeighbours = 64
	// mostNeighbours is the maximum number of blobs that are added to a later request of such a command.
	mostNeighbours = 4096
	// If a request has at least manyWants wants, the command is assumed to request all objects that it needs at once.
	manyWants = 8
)

// neighbours is the prediction for a command without a plan. It adds, in this order: the files in the directory of the
// requested file in HEAD's tree; the rest of that tree, beginning with the requested file; and, from the second request
// on, older versions of files, the newest first. Each request may add four times as many blobs as the previous request.
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
	err := q.repo.git.stream(q.repo.ctx, "", []string{"ls-tree", "-r", "-z", "HEAD"}, func(r *bufio.Reader) error {
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
