package ui_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/chrome"
)

// TestBrowserCompares selects sessions in the list, compares them, and follows a difference to a file. UI_PICTURES=DIR
// also writes pictures.
func TestBrowserCompares(t *testing.T) {
	t.Parallel()
	w, app, _ := three(t)
	p := w.person(t, chrome.Start(t), w.reader(t, app))
	p.open("/ui/team/app")
	for _, name := range []string{"one", "two", "three"} {
		p.Click(`input[value="` + name + `@"]`)
	}
	p.Loads(func() { p.Click(`button[form="compare"]`) })
	compared := p.Text("location.href")
	p.wants("4 paths changed, 3 by two or more, 1 in conflict.")
	p.Loads(func() { p.Click(".matrix .clash a") })
	p.Until(`[...document.querySelectorAll("ins")].some((e) => e.innerText.includes("()"))`)
	p.Open(compared)
	p.Loads(func() { p.Click(`.views a:last-child`) })
	p.wants("conflict B–C")
	p.Loads(func() { p.Click(`.pairs .conflict`) })
	p.wants("other.txt")
	p.Open(compared)
	p.Loads(func() { p.Click(`main p a[href*="p=one%4001"]`) }) // the link to the comparison of exactly these versions
	p.wants("one@01")
	if dir := os.Getenv("UI_PICTURES"); dir != "" {
		for _, width := range []int{360, 1280, 2560} {
			p.Resize(width, 900)
			p.open("/ui/team/app/compare?p=one@&p=two@&p=three@")
			p.Picture(filepath.Join(dir, "compare-"+strconv.Itoa(width)+".png"))
			p.open("/ui/team/app")
			p.Picture(filepath.Join(dir, "list-"+strconv.Itoa(width)+".png"))
		}
	}
}
