package ui_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/ui"
)

// archives is a list of archived sessions, sorted by name.
type archives []records.Archive

func (a archives) List(_ context.Context, _, after string, limit int) (list []records.Archive, _ error) {
	for _, one := range a {
		if one.Session > after && len(list) < limit {
			list = append(list, one)
		}
	}
	return list, nil
}

func TestArchivedSessions(t *testing.T) {
	var all archives
	for i := range 60 {
		all = append(all, records.Archive{Session: fmt.Sprintf("old-%02d", i), Pack: records.Pack{Bytes: 3000},
			Archived: time.Now(), Changed: time.Now().Add(-3 * time.Hour),
			Info: fmt.Sprintf(`{"state":"closed","title":"<b>%d","owner":"ann"}`, i)})
	}
	w := newWorld(t, func(o *ui.Options) { o.Archives = all })
	read := w.reader(t, w.repo(t, "team", "app", newSession(t, "work", map[string]string{"a": "a\n"}).done()))
	page := w.get(t, read, link(t, w.get(t, read, "/ui/team/app", http.StatusOK), "Archived sessions"), http.StatusOK)
	wants(t, plain(page), "old-00 <b>0 closed ann 2.9 KiB 3 h ago just now artifactfs session reopen '"+w.url+
		"/git/team/app.git#session=old-00'", "old-49")
	page = w.get(t, read, link(t, page, "More sessions"), http.StatusOK)
	if text := plain(page); !strings.Contains(text, "old-50") || !strings.Contains(text, "old-59") ||
		strings.Contains(text, "old-49") || strings.Contains(text, "More sessions") {
		t.Errorf("second page: %s", text)
	}
	none := newWorld(t, nil)
	read = none.reader(t, none.repo(t, "team", "app", newSession(t, "work", map[string]string{"a": "a\n"}).done()))
	if page := none.get(t, read, "/ui/team/app", http.StatusOK); strings.Contains(page, "Archived") {
		t.Error("page of a repository without archived sessions has a link to them")
	}
	none.get(t, read, "/ui/team/app/archived", http.StatusNotFound)
}
