package promisor

import (
	"bufio"
	"path"
	"slices"
	"strings"
)

const (
	// fewNeighbours is the number of blobs that are added when a command whose plan predicts nothing has opened several objects.
	fewNeighbours = 16
	// firstNeighbours is the number of blobs that are added to the first request for a single object by a command without a plan,
	// a function that predicts its objects.
	firstNeighbours = 64
	// mostNeighbours is the maximum number of blobs that are added to a later request of such a command.
	mostNeighbours = 4096
)

// neighbours is the prediction for a command without a plan. It adds files in the directory of the requested file in HEAD's tree,
// then the rest of that tree, beginning with the requested file, and from the second request on older versions, the newest first.
// The first request adds at most as many blobs as the
// parameter first, and each further request four times as many as the request before.
func (q *question) neighbours(first int) error {
	q.allow(first)
	q.limit = min(q.limit, mostNeighbours)
	type file struct {
		path string
		side
	}
	var files []file
	at := -1
	err := q.repo.quarantine.stream(q.repo.ctx, "", []string{"ls-tree", "-r", "-z", "HEAD"}, func(r *bufio.Reader) error {
		return readTree(r, func(path string, s side) error {
			if at < 0 && s.id == q.wanted {
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
