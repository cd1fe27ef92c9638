package objects

import (
	_ "github.com/minio/minio-go/v7"
)
