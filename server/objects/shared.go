package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
)

// Cache is a Store for files that can be made again, which several processes write at the same time under the same
// keys. Files with the same key may have different contents, which are equally good.
type Cache interface {
	Store
	// PutNew does the same as Put if no file is stored under the key. It reports whether it has stored the file.
	PutNew(ctx context.Context, key, path string) (stored bool, err error)
	// Range returns length bytes of a file from offset on, or its last -offset bytes if offset is negative, and the size
	// of the file. The result is shorter at the end of the file.
	Range(ctx context.Context, key string, offset, length int64) (data []byte, size int64, err error)
}

var (
	_ Cache = (*Dir)(nil)
	_ Cache = (*S3)(nil)
)

// OpenCache returns the store at a URL, as Open does.
func OpenCache(location string) (Cache, error) {
	s, err := Open(location)
	if err != nil {
		return nil, err
	}
	return s.(Cache), nil
}

// PutNew implements Cache.
func (d *Dir) PutNew(ctx context.Context, key, path string) (stored bool, err error) {
	if err := checkKey(key); err != nil {
		return false, err
	}
	if _, err := d.fs.Stat(filepath.Join(d.root, key)); err == nil {
		return false, nil
	}
	err = d.Put(ctx, key, path)
	if errors.Is(err, fs.ErrExist) { // another process has stored a file of another size since
		return false, nil
	}
	return err == nil, err
}

// Range implements Cache.
func (d *Dir) Range(ctx context.Context, key string, offset, length int64) ([]byte, int64, error) {
	if err := checkKey(key); err != nil {
		return nil, 0, err
	}
	fail := func(err error) ([]byte, int64, error) {
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrNotFound
		}
		return nil, 0, fmt.Errorf("read object %s: %w", key, Classify(err))
	}
	path := filepath.Join(d.root, key)
	info, err := d.fs.Stat(path)
	if err != nil {
		return fail(err)
	}
	f, err := d.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	if offset < 0 {
		offset, length = max(0, info.Size()+offset), -offset
	}
	data := make([]byte, max(0, min(length, info.Size()-offset)))
	if n, err := f.ReadAt(data, offset); n < len(data) {
		return fail(err)
	}
	return data, info.Size(), nil
}

// PutNew implements Cache. The service decides which of several files is stored.
func (s *S3) PutNew(ctx context.Context, key, path string) (stored bool, err error) {
	err = s.put(ctx, key, path, true)
	var answer minio.ErrorResponse
	if errors.As(err, &answer) && (answer.StatusCode == http.StatusPreconditionFailed ||
		answer.StatusCode == http.StatusConflict) {
		return false, nil
	}
	return err == nil, err
}

// Range implements Cache.
func (s *S3) Range(ctx context.Context, key string, offset, length int64) ([]byte, int64, error) {
	if err := checkKey(key); err != nil {
		return nil, 0, err
	}
	var options minio.GetObjectOptions
	first, last := offset, offset+length-1
	if offset < 0 {
		first, last, length = 0, offset, -offset
	}
	err := options.SetRange(first, last)
	var data []byte
	var size int64
	if err == nil {
		data, size, err = s.readRange(ctx, s.prefix+key, length, options)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read object %s: %w", key, s.classify(ctx, err))
	}
	return data, size, nil
}

// readRange reads at most length bytes of an object. size is the size of the whole object.
func (s *S3) readRange(ctx context.Context, key string, length int64,
	o minio.GetObjectOptions) (data []byte, size int64, err error) {
	body, info, header, err := minio.Core{Client: s.client}.GetObject(ctx, s.bucket, key, o)
	if err != nil {
		return nil, 0, err
	}
	defer body.Close()
	size = info.Size
	if _, total, ok := strings.Cut(header.Get("Content-Range"), "/"); ok { // a service may answer with the whole object
		if size, err = strconv.ParseInt(total, 10, 64); err != nil {
			return nil, 0, fmt.Errorf("%w: invalid Content-Range", ErrUnavailable)
		}
	}
	if data, err = io.ReadAll(io.LimitReader(body, length)); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return data, size, nil
}
