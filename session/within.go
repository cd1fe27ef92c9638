package session

import (
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// maxAncestry is the maximum number of commits that the function Within reads.
const maxAncestry = 200_000

// Within reports whether the commit wanted is the commit tip or one of its ancestors. It knows only ancestors that are
// on this host. It does not visit the parents of commits that are more than a day older than wanted, by committer date,
// and it returns false after maxAncestry commits.
func Within(repo *Repo, tip, wanted object.ID) bool {
	if tip == wanted {
		return true
	}
	if tip.IsZero() || wanted.IsZero() {
		return false
	}
	goal, err := repo.Commit(wanted)
	if err != nil { // the object wanted is missing on this host, or is not a commit
		return false
	}
	oldest := goal.Committed.Add(-24 * time.Hour)
	seen := map[object.ID]bool{tip: true}
	for stack := []object.ID{tip}; len(stack) > 0 && len(seen) <= maxAncestry; {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		info, err := repo.Commit(id)
		if err != nil || info.Committed.Before(oldest) {
			continue
		}
		for _, p := range info.Parents {
			if p == wanted {
				return true
			}
			if !seen[p] {
				seen[p] = true
				stack = append(stack, p)
			}
		}
	}
	return false
}
